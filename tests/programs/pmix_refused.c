/*
 * pmix_refused
 *
 * Asks for what there is not here, and prints
 *     pmix_refused rank=R fabric=STATUS session=STATUS
 * with what PMIx answers: to the registration or an update of a fabric, and to the pausing of a session (0 where libpmix has no
 * such function).
 */
#include "client.h"
#include <dlfcn.h>
#include <pmix.h>

typedef pmix_status_t session_fn(uint32_t session, const pmix_info_t directives[], size_t count,
                                 pmix_info_cbfunc_t done, void *data);

static pmix_status_t session(void)
{
    const bool yes = true;
    pmix_info_t info;
    session_fn *control = (session_fn *)dlsym(RTLD_DEFAULT, "PMIx_Session_control");
    if (control == NULL)
        return PMIX_SUCCESS;
    PMIX_INFO_LOAD(&info, "pmix.ssn.pause", &yes, PMIX_BOOL);
    return control(UINT32_MAX, &info, 1, NULL, NULL);
}

int main(void)
{
    pmix_fabric_t fabric;
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    memset(&fabric, 0, sizeof fabric);
    /* With libpmix's own components alone there is nothing to register: before version 7 that is no error. */
    pmix_status_t fabrics = PMIx_Fabric_register(&fabric, NULL, 0);
    if (libpmix() < 7) {
        must(fabrics, "PMIx_Fabric_register");
        fabrics = PMIx_Fabric_update(&fabric);
        must(PMIx_Fabric_deregister(&fabric), "PMIx_Fabric_deregister");
    }
    report("pmix_refused rank=%u fabric=%d session=%d", me.rank, fabrics, session());
    PMIx_Finalize(NULL, 0);
    return 0;
}
