/* The PMIx types that the protocol carries; see types.c. */
#ifndef WIREUP_TYPES_H
#define WIREUP_TYPES_H

#include "shim.h"

enum shape { NUMBER, TEXT, TIMEVAL, PROC, BYTES, ENVAR, PROC_INFO, DEVICE_DISTANCE };

/* One PMIx type that may stand alone and in arrays. */
struct type {
    uint8_t tag;
    pmix_data_type_t pmix;
    enum shape shape;
    uint16_t size; /* of an array element in memory; for numbers also on the wire */
};

/* NULL if the protocol does not carry it so. */
const struct type *type_of_pmix(pmix_data_type_t pmix);
const struct type *type_of_tag(uint8_t tag);

/* Whether a value of this type holds a pointer to the object that an array holds inline. */
static inline bool is_boxed(const struct type *type)
{
    return type->shape == PROC || type->shape == PROC_INFO || type->shape == DEVICE_DISTANCE;
}

#endif
