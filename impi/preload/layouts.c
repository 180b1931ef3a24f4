/*
 * Elements of a data type as messages between clients have them.
 *
 * The launch's MPI packs; this file changes the byte order. MPI_Pack_external does not serve: MPICH and Open MPI shorten MPI_LONG
 * to 4 bytes, and MPICH aborts for MPI_WCHAR. Elements keep their size here.
 */
#include <limits.h>
#include <stdlib.h>

#include "preload.h"

/* The parts that a type was made of. */
struct parts {
    int combiner;
    int64_t count;
    int64_t *block_lengths; /* by part; only those of MPI_COMBINER_STRUCT are valid */
    MPI_Datatype *types;
};

#if MPI_VERSION >= 4
static int combiner_of(MPI_Datatype type)
{
    MPI_Count integers, addresses, counts, types;
    int combiner = MPI_COMBINER_NAMED;

    PMPI(Type_get_envelope_c)(type, &integers, &addresses, &counts, &types, &combiner);
    return combiner;
}

/* Reads the parts of a type that is not named; `free_parts` follows. */
static struct parts get_parts(MPI_Datatype type)
{
    MPI_Count integer_count, address_count, large_count, type_count;
    struct parts parts;

    PMPI(Type_get_envelope_c)(type, &integer_count, &address_count, &large_count, &type_count, &parts.combiner);
    int *integers = allocate(sizeof(int) * (size_t)integer_count);
    MPI_Aint *addresses = allocate(sizeof(MPI_Aint) * (size_t)address_count);
    MPI_Count *counts = allocate(sizeof(MPI_Count) * (size_t)large_count);
    parts.count = type_count;
    parts.types = allocate(sizeof(MPI_Datatype) * (size_t)type_count);
    parts.block_lengths = allocate(sizeof(int64_t) * (size_t)type_count);
    PMPI(Type_get_contents_c)(type, integer_count, address_count, large_count, type_count, integers, addresses, counts,
                              parts.types);
    for (int64_t i = 0; parts.combiner == MPI_COMBINER_STRUCT && i < parts.count; i++) {
        /* The number of blocks is in front. */
        parts.block_lengths[i] = large_count > 0 ? counts[i + 1] : integers[i + 1];
    }
    free(integers);
    free(addresses);
    free(counts);
    return parts;
}
#else
static int combiner_of(MPI_Datatype type)
{
    int integers, addresses, types;
    int combiner = MPI_COMBINER_NAMED;

    PMPI(Type_get_envelope)(type, &integers, &addresses, &types, &combiner);
    return combiner;
}

/* Reads the parts of a type that is not named; `free_parts` follows. */
static struct parts get_parts(MPI_Datatype type)
{
    int integer_count, address_count, type_count;
    struct parts parts;

    PMPI(Type_get_envelope)(type, &integer_count, &address_count, &type_count, &parts.combiner);
    int *integers = allocate(sizeof(int) * (size_t)integer_count);
    MPI_Aint *addresses = allocate(sizeof(MPI_Aint) * (size_t)address_count);
    parts.count = type_count;
    parts.types = allocate(sizeof(MPI_Datatype) * (size_t)type_count);
    parts.block_lengths = allocate(sizeof(int64_t) * (size_t)type_count);
    PMPI(Type_get_contents)(type, integer_count, address_count, type_count, integers, addresses, parts.types);
    for (int64_t i = 0; parts.combiner == MPI_COMBINER_STRUCT && i < parts.count; i++) {
        /* The number of blocks is in front. */
        parts.block_lengths[i] = integers[i + 1];
    }
    free(integers);
    free(addresses);
    return parts;
}
#endif

static void free_parts(struct parts *parts)
{
    for (int64_t i = 0; i < parts->count; i++) {
        if (!is_named(parts->types[i])) {
            PMPI(Type_free)(&parts->types[i]);
        }
    }
    free(parts->types);
    free(parts->block_lengths);
}

bool is_named(MPI_Datatype type)
{
    return combiner_of(type) == MPI_COMBINER_NAMED;
}

static int type_size(MPI_Datatype type)
{
    int size = 0;

    PMPI(Type_size)(type, &size);
    return size == MPI_UNDEFINED ? 0 : size;
}

int wire_bytes(int count, MPI_Datatype type)
{
    const int64_t bytes = (int64_t)count * type_size(type);

    return bytes > INT_MAX ? -1 : (int)bytes;
}

bool has_gaps(MPI_Datatype type)
{
    MPI_Aint lower = 0;
    MPI_Aint extent = 0;

    if (!is_named(type)) {
        return true;
    }
    PMPI(Type_get_extent)(type, &lower, &extent);
    return extent != type_size(type);
}

static void convert(void *data, size_t bytes, size_t size)
{
    wireup_impi_convert(impi_world, data, bytes - bytes % size, size);
}

/* Converts pairs of a number and an int. */
static void convert_pairs(char *data, size_t bytes, size_t size)
{
    for (; bytes >= size; data += size, bytes -= size) {
        convert(data, size - sizeof(int), size - sizeof(int));
        convert(data + size - sizeof(int), sizeof(int), sizeof(int));
    }
}

/* A type that an MPI lacks is MPI_DATATYPE_NULL. */
static bool is_one_of(MPI_Datatype type, const MPI_Datatype *types, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (types[i] != MPI_DATATYPE_NULL && types[i] == type) {
            return true;
        }
    }
    return false;
}

static void convert_named(MPI_Datatype type, void *data, size_t bytes)
{
    const MPI_Datatype plain[] = {MPI_BYTE, MPI_PACKED};
    const MPI_Datatype pairs[] = {MPI_FLOAT_INT, MPI_DOUBLE_INT, MPI_LONG_INT, MPI_SHORT_INT, MPI_LONG_DOUBLE_INT};
    const MPI_Datatype halves[] = {MPI_2INT,   MPI_C_COMPLEX,   MPI_C_DOUBLE_COMPLEX, MPI_C_LONG_DOUBLE_COMPLEX,
                                   MPI_COMPLEX, MPI_DOUBLE_COMPLEX, MPI_2INTEGER,      MPI_2REAL,
                                   MPI_2DOUBLE_PRECISION, MPI_CXX_FLOAT_COMPLEX, MPI_CXX_DOUBLE_COMPLEX,
                                   MPI_CXX_LONG_DOUBLE_COMPLEX, MPI_COMPLEX8, MPI_COMPLEX16};
    const size_t size = (size_t)type_size(type);

    if (size <= 1 || is_one_of(type, plain, sizeof(plain) / sizeof(plain[0]))) {
        return;
    }
    if (is_one_of(type, pairs, sizeof(pairs) / sizeof(pairs[0]))) {
        convert_pairs(data, bytes, size);
    } else if (is_one_of(type, halves, sizeof(halves) / sizeof(halves[0]))) {
        convert(data, bytes, size / 2);
    } else {
        convert(data, bytes, size);
    }
}

void convert_elements(MPI_Datatype type, void *data, size_t bytes)
{
    const size_t whole = (size_t)type_size(type);

    if (is_named(type)) {
        convert_named(type, data, bytes);
        return;
    }
    struct parts parts = get_parts(type);
    if (parts.count == 0) {
        /* A type of Fortran by its precision. */
        convert_named(type, data, bytes);
    } else if (parts.combiner != MPI_COMBINER_STRUCT) {
        /* Any other type repeats its only part. */
        convert_elements(parts.types[0], data, bytes);
    }
    char *next = data;
    for (size_t left = parts.combiner == MPI_COMBINER_STRUCT && whole > 0 ? bytes : 0; left > 0;) {
        for (int64_t i = 0; i < parts.count && left > 0; i++) {
            size_t part = (size_t)parts.block_lengths[i] * (size_t)type_size(parts.types[i]);
            part = part < left ? part : left;
            convert_elements(parts.types[i], next, part);
            next += part;
            left -= part;
        }
    }
    free_parts(&parts);
}

void *pack_message(const void *buffer, int count, MPI_Datatype type, int bytes)
{
    void *packed = allocate((size_t)bytes + 1);
    int position = 0;

    if (bytes > 0 && buffer == MPI_BOTTOM) {
        /* MPICH's MPI_Pack and MPI_Unpack refuse this address. */
        PMPI(Sendrecv)(buffer, count, type, 0, 0, packed, bytes, MPI_PACKED, 0, 0, self_comm, MPI_STATUS_IGNORE);
    } else if (bytes > 0 && has_gaps(type)) {
        PMPI(Pack)(buffer, count, type, packed, bytes, &position, MPI_COMM_SELF);
    } else if (bytes > 0) {
        memcpy(packed, buffer, (size_t)bytes);
    }
    convert_elements(type, packed, (size_t)bytes);
    return packed;
}

void unpack_message(void *packed, int bytes, void *buffer, int count, MPI_Datatype type)
{
    const int size = type_size(type);
    int position = 0;

    convert_elements(type, packed, (size_t)bytes);
    if (bytes == 0 || packed == buffer) {
        return;
    }
    if (size > 0 && bytes % size == 0 && buffer != MPI_BOTTOM) {
        PMPI(Unpack)(packed, bytes, &position, buffer, bytes / size, type, MPI_COMM_SELF);
    } else {
        /* A receive may end within an element; MPI_Unpack does not. */
        PMPI(Sendrecv)(packed, bytes, MPI_PACKED, 0, 0, buffer, count, type, 0, 0, self_comm, MPI_STATUS_IGNORE);
    }
}
