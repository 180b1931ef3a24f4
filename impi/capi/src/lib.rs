//! `libwireup_impi`: [`Peer`] from C. `wireup-impi.h` has the rules; this file only crosses the boundary.

#![allow(unsafe_code, reason = "the C boundary")]
#![allow(
    clippy::missing_safety_doc,
    reason = "wireup-impi.h documents the obligations of callers"
)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use wireup_impi_core::collective::{BlockMerge, CollectiveChannel, CollectiveStep, Operation};
use wireup_impi_core::endpoint::{Completion, Envelope, MatchSpec, RequestId, Status};
use wireup_impi_io::peer::{ElementType, Operator, Peer, PeerError};

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Status of a message, `struct wireup_impi_status`.
#[derive(Debug)]
#[repr(C)]
pub struct CStatus {
    source: c_int,
    tag: c_int,
    bytes: u64,
    cancelled: c_int,
}

fn fail(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    ERROR.with_borrow_mut(|error| *error = text);
}

/// Runs a body; neither errors nor panics cross the boundary.
fn guarded<T>(failed: T, body: impl FnOnce() -> Result<T, PeerError>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            fail(&error.to_string());
            failed
        }
        Err(_) => {
            fail("internal error of libwireup_impi");
            failed
        }
    }
}

fn argument(text: impl Into<String>) -> PeerError {
    PeerError::Argument(text.into())
}

fn peer<'a>(world: *const Peer) -> Result<&'a Peer, PeerError> {
    // SAFETY: the caller has it from wireup_impi_open and has not closed it.
    unsafe { world.as_ref() }.ok_or_else(|| argument("the world is NULL"))
}

/// Takes back the world that a caller gives up.
fn take_back(world: *mut Peer) -> Result<Box<Peer>, PeerError> {
    peer(world)?;
    // SAFETY: the caller has it from wireup_impi_open, and gives it back once.
    Ok(unsafe { Box::from_raw(world) })
}

/// Returns the entry of a list that a number of the header denotes.
fn listed<T: Copy>(all: &[T], number: c_int, what: &str) -> Result<T, PeerError> {
    let known = usize::try_from(number).ok().and_then(|at| all.get(at));
    known
        .copied()
        .ok_or_else(|| argument(format!("unknown {what} {number}")))
}

fn element(kind: c_int) -> Result<ElementType, PeerError> {
    listed(&ElementType::ALL, kind, "type")
}

fn operator(op: c_int) -> Result<Operator, PeerError> {
    listed(&Operator::ALL, op, "operation")
}

fn rank(rank: c_int) -> Result<usize, PeerError> {
    usize::try_from(rank).map_err(|_| argument(format!("invalid rank {rank}")))
}

fn bytes(count: usize, kind: ElementType, times: usize) -> Result<usize, PeerError> {
    let bytes = count
        .checked_mul(kind.size())
        .and_then(|bytes| bytes.checked_mul(times));
    // What a slice can have.
    bytes
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(|| argument("the number of bytes is too large"))
}

/// Returns the caller's memory; of length 0 where there is none.
fn input<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], PeerError> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(argument("null pointer")),
        // SAFETY: the caller gives this number of bytes, and does not change them during the call.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) }),
    }
}

fn output<'a>(data: *mut c_void, length: usize) -> Result<&'a mut [u8], PeerError> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(argument("null pointer")),
        // SAFETY: the caller gives this number of bytes, and does not use them during the call.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), length) }),
    }
}

/// Returns the bytes of each process, of which there are `processes` counts.
fn lengths(
    counts: *const usize,
    processes: usize,
    kind: ElementType,
) -> Result<Vec<usize>, PeerError> {
    let counts = input(counts.cast(), processes * size_of::<usize>())?;
    let counts = counts.as_chunks().0.iter();
    let lengths = counts.map(|count| bytes(usize::from_ne_bytes(*count), kind, 1));
    lengths.collect()
}

/// Returns the sum of the lengths of blocks.
fn total(lengths: &[usize]) -> Result<usize, PeerError> {
    let sum = lengths
        .iter()
        .try_fold(0, |sum: usize, length| sum.checked_add(*length));
    bytes(sum.unwrap_or(usize::MAX), ElementType::Byte, 1)
}

fn any(value: c_int) -> Result<Option<usize>, PeerError> {
    if value == -1 {
        Ok(None)
    } else {
        rank(value).map(Some)
    }
}

fn any_tag(tag: c_int) -> Option<i32> {
    (tag != -1).then_some(tag)
}

fn write_status(out: *mut CStatus, status: Option<&Status>, cancelled: bool) {
    let status_out = CStatus {
        source: status.map_or(-1, |status| c_int::try_from(status.source).unwrap_or(-1)),
        tag: status.map_or(-1, |status| status.tag),
        bytes: status.map_or(0, |status| status.length),
        cancelled: c_int::from(cancelled),
    };
    if !out.is_null() {
        // SAFETY: the caller gives room for one status, or null.
        unsafe { out.write(status_out) };
    }
}

/// Writes the status of a request that has completed; its message is copied as far as there is room.
fn write_completion(
    completion: Completion,
    data: *mut c_void,
    room: usize,
    status: *mut CStatus,
) -> Result<(), PeerError> {
    match completion {
        Completion::Sent => write_status(status, None, false),
        Completion::Cancelled => write_status(status, None, true),
        Completion::Received(origin, message) | Completion::Truncated(origin, message) => {
            let length = message.len().min(room);
            output(data, length)?.copy_from_slice(&message[..length]);
            write_status(status, Some(&origin), false);
        }
    }
    Ok(())
}

fn finish(
    peer: &Peer,
    request: RequestId,
    data: *mut c_void,
    room: usize,
    status: *mut CStatus,
) -> Result<(), PeerError> {
    let completion = peer.wait(request)?;
    if let Completion::Received(origin, message) = &completion
        && message.len() > room
    {
        return Err(PeerError::Truncated {
            length: origin.length,
            limit: room,
        });
    }
    write_completion(completion, data, room, status)
}

fn match_spec(source: c_int, tag: c_int, context: u64) -> Result<MatchSpec, PeerError> {
    Ok(MatchSpec {
        source: any(source)?,
        tag: any_tag(tag),
        context,
    })
}

fn start(
    world: *const Peer,
    data: *const c_void,
    count: usize,
    kind: c_int,
    to: c_int,
    tag: c_int,
    synchronous: bool,
) -> Result<RequestId, PeerError> {
    let kind = element(kind)?;
    let data = input(data, bytes(count, kind, 1)?)?;
    peer(world)?.start_send(data, kind, rank(to)?, tag, synchronous)
}

/// Returns the operation of `enum wireup_impi_collective`.
fn operation(number: c_int, root: usize) -> Result<Operation, PeerError> {
    let commutative = true;
    let all = [
        Operation::Barrier,
        Operation::Bcast { root },
        Operation::Reduce { root, commutative },
        Operation::Scan,
        Operation::Gather { root },
        Operation::Scatter { root },
        Operation::Allgather,
        Operation::Allgatherv,
        Operation::Alltoall,
    ];
    listed(&all, number, "collective")
}

/// Encodes steps as the header documents.
fn encode(steps: Vec<CollectiveStep>) -> Result<Vec<c_int>, PeerError> {
    let mut words = Vec::new();
    for step in steps {
        let (kind, process, tag, channel, blocks) = match step {
            CollectiveStep::Send {
                to,
                tag,
                channel,
                blocks,
            } => (0, to, tag, channel, blocks),
            CollectiveStep::Receive {
                from,
                tag,
                channel,
                blocks,
                join,
            } => {
                let kind = if join == BlockMerge::Replace { 1 } else { 2 };
                (kind, from, tag, channel, blocks)
            }
            CollectiveStep::Copy { from, to } => {
                (3, 0, 0, CollectiveChannel::Local, vec![from, to])
            }
            CollectiveStep::Combine { from, to } => {
                (4, 0, 0, CollectiveChannel::Local, vec![from, to])
            }
        };
        let channel = match channel {
            CollectiveChannel::PointToPoint => 0,
            CollectiveChannel::Collective => 1,
            CollectiveChannel::Local => 2,
        };
        let numbers = [process, tag as usize, channel, blocks.len()];
        words.push(kind);
        for number in numbers.into_iter().chain(blocks) {
            let word = c_int::try_from(number).map_err(|_| argument("too many processes"))?;
            words.push(word);
        }
    }
    Ok(words)
}

/// Defines functions that return this value if they fail.
macro_rules! calls {
    ($failed:literal as $result:ty: $($name:ident ( $($arg:ident : $type:ty),* ) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(missing_docs, reason = "see wireup-impi.h")]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            guarded($failed, || { $body })
        }
    )*};
}

/// See `wireup-impi.h`; so for all functions.
#[unsafe(no_mangle)]
pub extern "C" fn wireup_impi_open() -> *mut Peer {
    guarded(std::ptr::null_mut(), || {
        Peer::open().map(|peer| Box::into_raw(Box::new(peer)))
    })
}

/// Returns the text of this thread's last error.
#[unsafe(no_mangle)]
pub extern "C" fn wireup_impi_error() -> *const c_char {
    ERROR.with_borrow(|error| error.as_ptr())
}

calls! {
    0 as u64:
    wireup_impi_isend(world: *const Peer, data: *const c_void, count: usize, kind: c_int, to: c_int, tag: c_int) {
        start(world, data, count, kind, to, tag, false).map(|request| request.0)
    }
    wireup_impi_issend(world: *const Peer, data: *const c_void, count: usize, kind: c_int, to: c_int, tag: c_int) {
        start(world, data, count, kind, to, tag, true).map(|request| request.0)
    }
    wireup_impi_irecv(world: *const Peer, count: usize, kind: c_int, source: c_int, tag: c_int) {
        let kind = element(kind)?;
        let limit = bytes(count, kind, 1)?;
        peer(world)?.start_receive(limit, kind, any(source)?, any_tag(tag)).map(|request| request.0)
    }
    wireup_impi_isend_bytes(
        world: *const Peer, data: *const c_void, length: usize, to: c_int, tag: c_int, context: u64, synchronous: c_int
    ) {
        let envelope = Envelope { destination: rank(to)?, tag, context, synchronous: synchronous != 0 };
        let data = input(data, bytes(length, ElementType::Byte, 1)?)?;
        peer(world)?.start_send_bytes(envelope, data).map(|request| request.0)
    }
    wireup_impi_irecv_bytes(world: *const Peer, length: usize, source: c_int, tag: c_int, context: u64) {
        let limit = bytes(length, ElementType::Byte, 1)?;
        peer(world)?.start_receive_bytes(match_spec(source, tag, context)?, limit).map(|request| request.0)
    }
}

calls! {
    -1 as c_int:
    wireup_impi_iprobe_bytes(
        world: *const Peer, source: c_int, tag: c_int, context: u64, status: *mut CStatus
    ) {
        let found = peer(world)?.find_message(match_spec(source, tag, context)?)?;
        write_status(status, found.as_ref(), false);
        Ok(c_int::from(found.is_some()))
    }
    wireup_impi_take(world: *const Peer, request: u64, data: *mut c_void, room: usize, status: *mut CStatus) {
        match peer(world)?.take_completion(RequestId(request))? {
            Some(completion) => write_completion(completion, data, room, status).map(|()| 1),
            None => Ok(0),
        }
    }
    wireup_impi_convert(world: *const Peer, data: *mut c_void, length: usize, size: usize) {
        let data = output(data, bytes(length, ElementType::Byte, 1)?)?;
        peer(world)?.convert(data, size);
        Ok(0)
    }
    wireup_impi_pause(world: *const Peer, microseconds: c_uint) {
        peer(world)?.pause(Duration::from_micros(microseconds.into()));
        Ok(0)
    }
    wireup_impi_close(world: *mut Peer) {
        take_back(world)?.close().map(|()| 0)
    }
    wireup_impi_leave(world: *mut Peer) {
        take_back(world)?.leave().map(|()| 0)
    }
    wireup_impi_print(world: *const Peer, text: *const c_char) {
        if text.is_null() {
            return Err(argument("null pointer"));
        }
        // SAFETY: the caller gives a string that ends with 0.
        let text = unsafe { CStr::from_ptr(text) };
        peer(world)?.print(&text.to_string_lossy()).map(|()| 0)
    }
    wireup_impi_crossover(world: *const Peer) {
        let bytes = peer(world)?.world().limits.crossover_size;
        Ok(c_int::try_from(bytes).unwrap_or(c_int::MAX))
    }
    wireup_impi_steps(
        world: *const Peer, clients: *const c_int, client_count: c_int, collective: c_int, root: c_int, is_long: c_int,
        process: c_int, steps: *mut c_int, room: usize
    ) {
        let count = usize::try_from(client_count).map_err(|_| argument("negative number of clients"))?;
        let sizes = input(clients.cast(), bytes(count, ElementType::Int32, 1)?)?;
        let sizes = sizes.as_chunks().0.iter().map(|size| rank(c_int::from_ne_bytes(*size)));
        let topology = peer(world)?.communicator_topology(sizes.collect::<Result<Vec<usize>, _>>()?);
        let (root, process) = (rank(root)?, rank(process)?);
        if root >= topology.size() || process >= topology.size() {
            return Err(argument(format!("the communicator has {} processes", topology.size())));
        }
        let words = encode(topology.steps(operation(collective, root)?, is_long != 0, process))?;
        let room = words.len().min(room);
        let text: Vec<u8> = words[..room].iter().flat_map(|word| word.to_ne_bytes()).collect();
        output(steps.cast(), text.len())?.copy_from_slice(&text);
        c_int::try_from(words.len()).map_err(|_| argument("too many processes"))
    }
    wireup_impi_rank(world: *const Peer) {
        Ok(c_int::try_from(peer(world)?.rank()).unwrap_or(-1))
    }
    wireup_impi_size(world: *const Peer) {
        Ok(c_int::try_from(peer(world)?.size()).unwrap_or(-1))
    }
    wireup_impi_clients(world: *const Peer) {
        Ok(c_int::try_from(peer(world)?.world().clients.len()).unwrap_or(-1))
    }
    wireup_impi_client_of(world: *const Peer, of: c_int) {
        let (peer, of) = (peer(world)?, rank(of)?);
        if of >= peer.size() {
            return Err(argument(format!("invalid rank {of}")));
        }
        Ok(c_int::try_from(peer.world().client_of(of)).unwrap_or(-1))
    }
    wireup_impi_send(world: *const Peer, data: *const c_void, count: usize, kind: c_int, to: c_int, tag: c_int) {
        let request = start(world, data, count, kind, to, tag, false)?;
        peer(world)?.wait(request).map(|_| 0)
    }
    wireup_impi_ssend(world: *const Peer, data: *const c_void, count: usize, kind: c_int, to: c_int, tag: c_int) {
        let request = start(world, data, count, kind, to, tag, true)?;
        peer(world)?.wait(request).map(|_| 0)
    }
    wireup_impi_recv(
        world: *const Peer, data: *mut c_void, count: usize, kind: c_int, source: c_int, tag: c_int, status: *mut CStatus
    ) {
        let (peer, kind) = (peer(world)?, element(kind)?);
        let room = bytes(count, kind, 1)?;
        // Before a message is taken for it.
        output(data, room)?;
        let request = peer.start_receive(room, kind, any(source)?, any_tag(tag))?;
        finish(peer, request, data, room, status).map(|()| 0)
    }
    wireup_impi_wait(world: *const Peer, request: u64, data: *mut c_void, room: usize, status: *mut CStatus) {
        finish(peer(world)?, RequestId(request), data, room, status).map(|()| 0)
    }
    wireup_impi_test(world: *const Peer, request: u64) {
        peer(world)?.test(RequestId(request)).map(c_int::from)
    }
    wireup_impi_cancel(world: *const Peer, request: u64) {
        peer(world)?.cancel(RequestId(request)).map(|()| 0)
    }
    wireup_impi_probe(world: *const Peer, source: c_int, tag: c_int, status: *mut CStatus) {
        let found = peer(world)?.probe(any(source)?, any_tag(tag), true)?;
        write_status(status, found.as_ref(), false);
        Ok(0)
    }
    wireup_impi_iprobe(world: *const Peer, source: c_int, tag: c_int, status: *mut CStatus) {
        let found = peer(world)?.probe(any(source)?, any_tag(tag), false)?;
        write_status(status, found.as_ref(), false);
        Ok(c_int::from(found.is_some()))
    }
    wireup_impi_barrier(world: *const Peer) {
        peer(world)?.barrier().map(|()| 0)
    }
    wireup_impi_bcast(world: *const Peer, data: *mut c_void, count: usize, kind: c_int, root: c_int) {
        let kind = element(kind)?;
        peer(world)?.bcast(output(data, bytes(count, kind, 1)?)?, kind, rank(root)?).map(|()| 0)
    }
    wireup_impi_reduce(world: *const Peer, data: *mut c_void, count: usize, kind: c_int, op: c_int, root: c_int) {
        let kind = element(kind)?;
        peer(world)?.reduce(output(data, bytes(count, kind, 1)?)?, kind, operator(op)?, rank(root)?).map(|()| 0)
    }
    wireup_impi_allreduce(world: *const Peer, data: *mut c_void, count: usize, kind: c_int, op: c_int) {
        let kind = element(kind)?;
        peer(world)?.allreduce(output(data, bytes(count, kind, 1)?)?, kind, operator(op)?).map(|()| 0)
    }
    wireup_impi_scan(world: *const Peer, data: *mut c_void, count: usize, kind: c_int, op: c_int) {
        let kind = element(kind)?;
        peer(world)?.scan(output(data, bytes(count, kind, 1)?)?, kind, operator(op)?).map(|()| 0)
    }
    wireup_impi_gather(world: *const Peer, own: *const c_void, count: usize, kind: c_int, all: *mut c_void, root: c_int) {
        let (peer, kind, root) = (peer(world)?, element(kind)?, rank(root)?);
        let times = if root == peer.rank() { peer.size() } else { 0 };
        let all = output(all, bytes(count, kind, times)?)?;
        peer.gather(input(own, bytes(count, kind, 1)?)?, all, kind, root).map(|()| 0)
    }
    wireup_impi_scatter(world: *const Peer, all: *const c_void, count: usize, kind: c_int, own: *mut c_void, root: c_int) {
        let (peer, kind, root) = (peer(world)?, element(kind)?, rank(root)?);
        let times = if root == peer.rank() { peer.size() } else { 0 };
        let all = input(all, bytes(count, kind, times)?)?;
        peer.scatter(all, output(own, bytes(count, kind, 1)?)?, kind, root).map(|()| 0)
    }
    wireup_impi_allgather(world: *const Peer, own: *const c_void, count: usize, kind: c_int, all: *mut c_void) {
        let (peer, kind) = (peer(world)?, element(kind)?);
        let all = output(all, bytes(count, kind, peer.size())?)?;
        peer.allgather(input(own, bytes(count, kind, 1)?)?, all, kind).map(|()| 0)
    }
    wireup_impi_alltoall(world: *const Peer, out: *const c_void, count: usize, kind: c_int, all: *mut c_void) {
        let (peer, kind) = (peer(world)?, element(kind)?);
        let length = bytes(count, kind, peer.size())?;
        peer.alltoall(input(out, length)?, output(all, length)?, kind).map(|()| 0)
    }    wireup_impi_gatherv(
        world: *const Peer, own: *const c_void, count: usize, kind: c_int, all: *mut c_void, counts: *const usize, root: c_int
    ) {
        let (peer, kind, root) = (peer(world)?, element(kind)?, rank(root)?);
        let lengths = lengths(counts, if root == peer.rank() { peer.size() } else { 0 }, kind)?;
        let all = output(all, total(&lengths)?)?;
        peer.gatherv(input(own, bytes(count, kind, 1)?)?, all, &lengths, kind, root).map(|()| 0)
    }
    wireup_impi_scatterv(
        world: *const Peer, all: *const c_void, counts: *const usize, count: usize, kind: c_int, own: *mut c_void, root: c_int
    ) {
        let (peer, kind, root) = (peer(world)?, element(kind)?, rank(root)?);
        let lengths = lengths(counts, if root == peer.rank() { peer.size() } else { 0 }, kind)?;
        let all = input(all, total(&lengths)?)?;
        peer.scatterv(all, &lengths, output(own, bytes(count, kind, 1)?)?, kind, root).map(|()| 0)
    }
    wireup_impi_allgatherv(
        world: *const Peer, own: *const c_void, count: usize, kind: c_int, all: *mut c_void, counts: *const usize
    ) {
        let (peer, kind) = (peer(world)?, element(kind)?);
        let lengths = lengths(counts, peer.size(), kind)?;
        let all = output(all, total(&lengths)?)?;
        peer.allgatherv(input(own, bytes(count, kind, 1)?)?, all, &lengths, kind).map(|()| 0)
    }
    wireup_impi_alltoallv(
        world: *const Peer, out: *const c_void, out_counts: *const usize, kind: c_int, all: *mut c_void, all_counts: *const usize
    ) {
        let (peer, kind) = (peer(world)?, element(kind)?);
        let to_each = lengths(out_counts, peer.size(), kind)?;
        let from_each = lengths(all_counts, peer.size(), kind)?;
        let (out, all) = (input(out, total(&to_each)?)?, output(all, total(&from_each)?)?);
        peer.alltoallv(out, &to_each, all, &from_each, kind).map(|()| 0)
    }
}
