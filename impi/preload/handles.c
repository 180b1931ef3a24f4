/* Handles of objects that the launch's MPI does not have: messages of other clients that were probed. */
#include <stdlib.h>

#include "preload.h"

/* No handle of an MPI is odd and as small: those of MPICH have a kind in their upper bits, those of Open MPI are addresses, and
 * those of the standard interface are below. */
enum { FIRST_HANDLE = 0x00700001 };

static struct {
    void **objects;
    size_t room;
} table;

intptr_t add_handle(void *object)
{
    size_t index = 0;

    while (index < table.room && table.objects[index] != NULL) {
        index++;
    }
    if (index == table.room) {
        const size_t room = table.room == 0 ? 16 : 2 * table.room;
        void **objects = allocate(room * sizeof(*objects));
        for (size_t i = 0; i < table.room; i++) {
            objects[i] = table.objects[i];
        }
        free(table.objects);
        table.objects = objects;
        table.room = room;
    }
    table.objects[index] = object;
    return FIRST_HANDLE + 2 * (intptr_t)index;
}

static size_t handle_index(intptr_t handle)
{
    return handle < FIRST_HANDLE || handle % 2 == 0 ? SIZE_MAX : (size_t)(handle - FIRST_HANDLE) / 2;
}

void *handle_object(intptr_t handle)
{
    const size_t index = handle_index(handle);

    return index < table.room ? table.objects[index] : NULL;
}

void remove_handle(intptr_t handle)
{
    const size_t index = handle_index(handle);

    if (index < table.room) {
        table.objects[index] = NULL;
    }
}
