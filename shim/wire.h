/*
 * The protocol between the agent and the PMIx host process: frame header, operation codes, value
 * tags and limits. The single source of these numbers: C includes this file, Rust gets it through
 * bindgen. docs/shim.md describes the payloads.
 *
 * All integers are little-endian. A frame is a header followed by its payload:
 *
 *     u32 payload length   u16 operation   u16 flags   u64 request id
 *
 * Two sockets carry the same frames. On the control socket the agent asks and the host answers; on
 * the upcall socket the host asks and the agent answers. An answer repeats the operation and the
 * id of its request and has WIREUP_FLAG_REPLY set. A notice has id 0 and gets no answer.
 */
#ifndef WIREUP_WIRE_H
#define WIREUP_WIRE_H

/* Version of this file and of the functions in host.h. Host and shim refuse each other when it
 * differs. */
#define WIREUP_SHIM_ABI 14

#define WIREUP_HEADER_LEN 16
#define WIREUP_FLAG_REPLY 1

/* Limits, enforced by every encoder and decoder. */
#define WIREUP_MAX_PAYLOAD (64 * 1024 * 1024) /* bytes after the header */
#define WIREUP_MAX_DEPTH 8                    /* arrays inside arrays */
#define WIREUP_MAX_ITEMS (4 * 1024 * 1024)    /* list elements of one frame, all levels together */
#define WIREUP_MAX_KEY 511                    /* bytes of an info's key; PMIX_MAX_KEYLEN */
#define WIREUP_MAX_NSPACE 255                 /* bytes of an nspace; PMIX_MAX_NSLEN */

enum wireup_op {
    /* control socket, notices of the host */
    WIREUP_OP_HELLO = 0x0001,
    WIREUP_OP_FAILED = 0x0002,
    WIREUP_OP_WARNING = 0x0003,
    /* control socket, requests of the agent */
    WIREUP_OP_INIT = 0x0010,
    WIREUP_OP_REGISTER_JOB = 0x0011,
    WIREUP_OP_DMODEX_REQUEST = 0x0012,
    WIREUP_OP_NOTIFY = 0x0013,
    WIREUP_OP_DEREGISTER_JOB = 0x0014,
    WIREUP_OP_FINALIZE = 0x0015,
    WIREUP_OP_PROBE = 0x0016,
    WIREUP_OP_IOF_DELIVER = 0x0017,
    /* upcall socket, notices */
    WIREUP_OP_CLIENT_CONNECTED = 0x0100,
    WIREUP_OP_CLIENT_FINALIZED = 0x0101,
    WIREUP_OP_REGISTER_EVENTS = 0x0102,
    WIREUP_OP_DEREGISTER_EVENTS = 0x0103,
    WIREUP_OP_NOTIFY_EVENT = 0x0104,
    WIREUP_OP_IOF_PULL = 0x0105,
    WIREUP_OP_GROUP_ENDED = 0x0106,
    WIREUP_OP_CONNECTIONS_LOST = 0x0107,
    WIREUP_OP_SPAWNED = 0x0108,
    /* upcall socket, requests */
    WIREUP_OP_ABORT = 0x0110,
    WIREUP_OP_FENCE = 0x0111,
    WIREUP_OP_DIRECT_MODEX = 0x0112,
    WIREUP_OP_QUERY = 0x0113,
    WIREUP_OP_LOG = 0x0114,
    WIREUP_OP_PUBLISH = 0x0115,
    WIREUP_OP_LOOKUP = 0x0116,
    WIREUP_OP_UNPUBLISH = 0x0117,
    WIREUP_OP_GROUP = 0x0118,
    WIREUP_OP_JOB_CONTROL = 0x0119,
    WIREUP_OP_SPAWN = 0x011a,
    WIREUP_OP_CONNECT = 0x011b,
    WIREUP_OP_DISCONNECT = 0x011c,
    WIREUP_OP_PUSH_STDIN = 0x011d,
    WIREUP_OP_GET_CREDENTIAL = 0x0130,
    WIREUP_OP_VALIDATE_CREDENTIAL = 0x0131,
    WIREUP_OP_ALLOCATE = 0x0132,
    WIREUP_OP_SESSION_CONTROL = 0x0133,
    WIREUP_OP_TOOL_CONNECTED = 0x0134
};

/* Stage of the start at which the host sent WIREUP_OP_FAILED. */
enum wireup_stage {
    WIREUP_STAGE_LOAD = 1, /* finding and opening the two libraries */
    WIREUP_STAGE_ABI = 2,  /* shim and host disagree */
    WIREUP_STAGE_PMIX = 3, /* libpmix too old, or it refused */
    WIREUP_STAGE_LINK = 4  /* the peer broke the protocol */
};

/* First byte of WIREUP_OP_GROUP. */
enum wireup_group_op {
    WIREUP_GROUP_CONSTRUCT = 0,
    WIREUP_GROUP_DESTRUCT = 1
};

/* First byte of every value. */
enum wireup_tag {
    WIREUP_TAG_UNDEF = 0, /* nothing follows */
    WIREUP_TAG_BOOL = 1,
    WIREUP_TAG_BYTE = 2,
    WIREUP_TAG_STRING = 3,
    WIREUP_TAG_SIZE = 4, /* u64 */
    WIREUP_TAG_PID = 5,  /* u32 */
    WIREUP_TAG_INT = 6,  /* i32 */
    WIREUP_TAG_INT8 = 7,
    WIREUP_TAG_INT16 = 8,
    WIREUP_TAG_INT32 = 9,
    WIREUP_TAG_INT64 = 10,
    WIREUP_TAG_UINT = 11, /* u32 */
    WIREUP_TAG_UINT8 = 12,
    WIREUP_TAG_UINT16 = 13,
    WIREUP_TAG_UINT32 = 14,
    WIREUP_TAG_UINT64 = 15,
    WIREUP_TAG_FLOAT = 16,
    WIREUP_TAG_DOUBLE = 17,
    WIREUP_TAG_TIMEVAL = 18, /* i64 seconds, i64 microseconds */
    WIREUP_TAG_TIME = 19,    /* i64 seconds */
    WIREUP_TAG_STATUS = 20,  /* i32 */
    WIREUP_TAG_PROC = 21,
    WIREUP_TAG_RANK = 22, /* u32 */
    WIREUP_TAG_BYTES = 23,
    WIREUP_TAG_ENVAR = 24, /* name, value, u8 separator */
    WIREUP_TAG_RANGE = 25,
    WIREUP_TAG_PERSISTENCE = 26,
    WIREUP_TAG_SCOPE = 27,
    WIREUP_TAG_PROC_STATE = 28,
    WIREUP_TAG_PROC_INFO = 29,
    WIREUP_TAG_REGEX = 30, /* PMIX_REGEX as bytes */
    WIREUP_TAG_ARRAY = 31, /* u8 element tag, u32 count, elements without their tag */
    WIREUP_TAG_INFO = 32,  /* as an array element only */
    /* From agent to host only: a plain list that the shim turns into a PMIX_REGEX. */
    WIREUP_TAG_NODE_LIST = 33, /* comma separated names, for PMIx_generate_regex */
    WIREUP_TAG_PPN_LIST = 34,  /* ranks per node, "0,1;2,3", for PMIx_generate_ppn */
    /* u16 PMIx type that this protocol does not carry. The shim leaves such an info out, or refuses
     * the list if the info is required. */
    WIREUP_TAG_FOREIGN = 35,
    WIREUP_TAG_DEVICE_DISTANCE = 36 /* identifier, name, u64 kinds, u16 least, u16 most */
};

/* Bits of an info's u32 flags. */
#define WIREUP_INFO_REQUIRED 1

#endif
