/*
 * pmix_refused
 *
 * Asks for what there is not here, and prints
 *     pmix_refused rank=R fabric=STATUS session=STATUS
 * with what PMIx answers: to the registration or an update of a fabric, and to the preempting of the session
 * (PMIX_ERR_NOT_FOUND where libpmix has no such function).
 */
#include "client.h"
#include <pmix.h>

int main(void)
{
    const bool yes = true;
    pmix_fabric_t fabric;
    pmix_info_t preempt;
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    memset(&fabric, 0, sizeof fabric);
    /* With libpmix's own components alone there is nothing to register: before version 7 that is no error. */
    pmix_status_t fabrics = PMIx_Fabric_register(&fabric, NULL, 0);
    if (libpmix() < 7) {
        must(fabrics, "PMIx_Fabric_register");
        fabrics = PMIx_Fabric_update(&fabric);
        must(PMIx_Fabric_deregister(&fabric), "PMIx_Fabric_deregister");
    }
    PMIX_INFO_LOAD(&preempt, PREEMPT_SESSION, &yes, PMIX_BOOL);
    report("pmix_refused rank=%u fabric=%d session=%d", me.rank, fabrics,
           control_session(&preempt));
    PMIx_Finalize(NULL, 0);
    return 0;
}
