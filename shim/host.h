/*
 * Functions of the shim for the sidecar's Rust code. docs/shim.md has the rules: which side
 * allocates, which frees, which pointers may be null, which thread calls what.
 */
#ifndef WIREUP_HOST_H
#define WIREUP_HOST_H

#include <stddef.h>
#include <stdint.h>

#include <pmix.h>
#include <pmix_server.h>

#include "wire.h"

#if defined(WIREUP_BUILDING_SHIM)
#define WIREUP_EXPORT __attribute__((visibility("default")))
#else
#define WIREUP_EXPORT
#endif

/* Returns WIREUP_SHIM_ABI of the build; compare it before any other call. */
WIREUP_EXPORT uint32_t wireup_shim_abi(void);

/* "wireup-shim-version=" and the version of the build, for programs that read the file and do not load it. */
WIREUP_EXPORT extern const char wireup_shim_version[];

/* Called once, on the shim's reader thread, when the agent is gone or broke the protocol and all
 * upcalls have been completed. reason is one static line. */
typedef void (*wireup_lost_fn)(const char *reason);

/* Takes over fd, the upcall socket, and starts the reader thread. Once per process, before
 * PMIx_server_init. Returns 0 or an errno. */
WIREUP_EXPORT int wireup_link_start(int fd, wireup_lost_fn lost);

/* Ends the link: every upcall is completed with PMIX_ERR_LOST_CONNECTION and later ones are
 * refused. The lost function is not called. Not from an upcall. */
WIREUP_EXPORT void wireup_link_stop(void);

/* Returns the module for PMIx_server_init of a libpmix of this version, static. */
WIREUP_EXPORT pmix_server_module_t *wireup_module(uint32_t major, uint32_t minor);

/* Forwards libpmix's own alerts, about monitored heartbeats and files, to the launcher: they reach the
 * clients of this node alone otherwise. Reports lost connections as well. After PMIx_server_init. */
WIREUP_EXPORT pmix_status_t wireup_watch_alerts(void);

/* If a tool has started the launcher and directs it (PMIX_LAUNCHER_RNDZ_URI), reports to the launcher that
 * the tool has released it, with the tool's directives, as an event of the tool. After PMIx_server_init, which
 * waits for that. Not from an upcall. */
WIREUP_EXPORT pmix_status_t wireup_follow_tool(void);

/* Whether a file is in a directory of which only empty directories may be removed. Any thread. */
WIREUP_EXPORT int wireup_keeps(const char *path);

/* A list of infos, owned by the caller. */
typedef struct wireup_infos wireup_infos_t;

/* Decodes an info list. PMIX_SUCCESS and *list, to be given to wireup_infos_free; or an error,
 * and *list is NULL. PMIx_server_init must have been called if the list has node or rank maps. */
WIREUP_EXPORT pmix_status_t wireup_infos_decode(const uint8_t *bytes, size_t len,
                                                wireup_infos_t **list);

/* Returns the array, NULL if empty; valid until the list is freed. */
WIREUP_EXPORT pmix_info_t *wireup_infos_items(const wireup_infos_t *list);
WIREUP_EXPORT size_t wireup_infos_count(const wireup_infos_t *list);

/* Frees a list of infos. NULL is allowed. */
WIREUP_EXPORT void wireup_infos_free(wireup_infos_t *list);

/* Makes a process name with an nspace of len bytes, cut at PMIX_MAX_NSLEN; NULL without memory. */
WIREUP_EXPORT pmix_proc_t *wireup_proc_new(const char *nspace, size_t len, uint32_t rank);

/* Frees a process name. NULL is allowed. */
WIREUP_EXPORT void wireup_proc_free(pmix_proc_t *proc);

/* Makes a copy of len bytes, len may be 0; NULL without memory. */
WIREUP_EXPORT pmix_byte_object_t *wireup_bytes_new(const uint8_t *bytes, size_t len);

/* Frees a byte object. NULL is allowed. */
WIREUP_EXPORT void wireup_bytes_free(pmix_byte_object_t *bytes);

#endif
