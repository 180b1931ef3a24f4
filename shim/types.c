/* The tag of each PMIx type on the wire, and its layout in memory. */
#include "types.h"

_Static_assert(sizeof(bool) == 1 && sizeof(int) == 4 && sizeof(pid_t) == 4 && sizeof(size_t) == 8
                   && sizeof(time_t) == 8 && sizeof(float) == 4 && sizeof(double) == 8,
               "widths on the wire are those of LP64");

static const struct type types[] = {
    {WIREUP_TAG_BOOL, PMIX_BOOL, NUMBER, 1},
    {WIREUP_TAG_BYTE, PMIX_BYTE, NUMBER, 1},
    {WIREUP_TAG_STRING, PMIX_STRING, TEXT, sizeof(char *)},
    {WIREUP_TAG_SIZE, PMIX_SIZE, NUMBER, 8},
    {WIREUP_TAG_PID, PMIX_PID, NUMBER, 4},
    {WIREUP_TAG_INT, PMIX_INT, NUMBER, 4},
    {WIREUP_TAG_INT8, PMIX_INT8, NUMBER, 1},
    {WIREUP_TAG_INT16, PMIX_INT16, NUMBER, 2},
    {WIREUP_TAG_INT32, PMIX_INT32, NUMBER, 4},
    {WIREUP_TAG_INT64, PMIX_INT64, NUMBER, 8},
    {WIREUP_TAG_UINT, PMIX_UINT, NUMBER, 4},
    {WIREUP_TAG_UINT8, PMIX_UINT8, NUMBER, 1},
    {WIREUP_TAG_UINT16, PMIX_UINT16, NUMBER, 2},
    {WIREUP_TAG_UINT32, PMIX_UINT32, NUMBER, 4},
    {WIREUP_TAG_UINT64, PMIX_UINT64, NUMBER, 8},
    {WIREUP_TAG_FLOAT, PMIX_FLOAT, NUMBER, 4},
    {WIREUP_TAG_DOUBLE, PMIX_DOUBLE, NUMBER, 8},
    {WIREUP_TAG_TIMEVAL, PMIX_TIMEVAL, TIMEVAL, sizeof(struct timeval)},
    {WIREUP_TAG_TIME, PMIX_TIME, NUMBER, 8},
    {WIREUP_TAG_STATUS, PMIX_STATUS, NUMBER, 4},
    {WIREUP_TAG_RANK, PMIX_PROC_RANK, NUMBER, 4},
    {WIREUP_TAG_RANGE, PMIX_DATA_RANGE, NUMBER, 1},
    {WIREUP_TAG_PERSISTENCE, PMIX_PERSIST, NUMBER, 1},
    {WIREUP_TAG_SCOPE, PMIX_SCOPE, NUMBER, 1},
    {WIREUP_TAG_PROC_STATE, PMIX_PROC_STATE, NUMBER, 1},
    {WIREUP_TAG_PROC, PMIX_PROC, PROC, sizeof(pmix_proc_t)},
    {WIREUP_TAG_BYTES, PMIX_BYTE_OBJECT, BYTES, sizeof(pmix_byte_object_t)},
    {WIREUP_TAG_ENVAR, PMIX_ENVAR, ENVAR, sizeof(pmix_envar_t)},
    {WIREUP_TAG_PROC_INFO, PMIX_PROC_INFO, PROC_INFO, sizeof(pmix_proc_info_t)},
    {WIREUP_TAG_DEVICE_DISTANCE, PMIX_DEVICE_DIST, DEVICE_DISTANCE, sizeof(pmix_device_distance_t)},
};

const struct type *type_of_pmix(pmix_data_type_t pmix)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (types[i].pmix == pmix) {
            return &types[i];
        }
    }
    return NULL;
}

const struct type *type_of_tag(uint8_t tag)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (types[i].tag == tag) {
            return &types[i];
        }
    }
    return NULL;
}
