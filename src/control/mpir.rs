//! MPIR, the interface by which debuggers find the processes of a job: variables and a function of the launcher that a
//! debugger finds by name, reads and writes while it has stopped the launcher.
//!
//! A debugger that starts the launcher sets [`MPIR_being_debugged`] before the launcher runs, and stops it in
//! [`MPIR_Breakpoint`], when the table is complete. A debugger that attaches later finds the table complete.
//!
//! Rule: ranks are numbered by their position in the table. The symbol `MPIR_i_am_starter` means that the launcher is not in
//! the table, `MPIR_partial_attach_ok` that ranks continue even if a debugger has not attached to all of them,
//! `MPIR_acquired_pre_main` that they are stopped before `main` while the launcher is in `MPIR_Breakpoint`. Only the
//! presence of these symbols matters. They are defined in `mpir.c`: debuggers need their types.
//! Source: The MPIR Process Acquisition Interface, version 1.0, MPI Forum.

#![allow(non_upper_case_globals, non_snake_case, reason = "names of MPIR")]

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int};
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

/// One process as debuggers read it: `MPIR_PROCDESC`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ProctableEntry {
    /// Name or address of the process's host.
    host_name: AtomicPtr<c_char>,
    /// Path of the executable.
    executable_name: AtomicPtr<c_char>,
    /// Process id on that host.
    pid: c_int,
}

// SAFETY: `mpir.c` defines all of them with these types; the function has no effect.
unsafe extern "C" {
    /// Processes of the launch, in rank order.
    safe static MPIR_proctable: AtomicPtr<ProctableEntry>;
    /// Number of entries in the table.
    safe static MPIR_proctable_size: AtomicI32;
    /// Nonzero if a debugger controls this process; the debugger sets it.
    safe static MPIR_being_debugged: AtomicI32;
    /// Reason of the last call of [`MPIR_Breakpoint`]: see [`SPAWNED`].
    safe static MPIR_debug_state: AtomicI32;
    safe static MPIR_i_am_starter: AtomicI32;
    safe static MPIR_partial_attach_ok: AtomicI32;
    safe static MPIR_acquired_pre_main: AtomicI32;
    /// Debuggers stop the launcher here.
    safe fn MPIR_Breakpoint();
}

/// `MPIR_DEBUG_SPAWNED`: the table was filled, or has grown.
const SPAWNED: c_int = 1;

/// Table that debuggers read, and the strings that its entries point to.
static SHOWN: Mutex<(Vec<ProctableEntry>, Vec<CString>)> = Mutex::new((Vec::new(), Vec::new()));

/// Whether a debugger controls this process.
pub(crate) fn is_debugged() -> bool {
    MPIR_being_debugged.load(Ordering::Relaxed) != 0
}

/// Replaces the table that debuggers read with these processes: host, executable, pid. A name with a NUL byte, which no
/// host or file has, becomes empty.
pub(crate) fn show<'a>(processes: impl IntoIterator<Item = (&'a str, &'a [u8], i32)>) {
    let mut names = Vec::new();
    let mut known: HashMap<&'a [u8], *mut c_char> = HashMap::new();
    let mut name = |bytes: &'a [u8], last: &mut (&'a [u8], *mut c_char)| {
        // Most processes have the host or program of the process before them.
        if std::ptr::eq(bytes, last.0) {
            return AtomicPtr::new(last.1);
        }
        let new = || {
            names.push(CString::new(bytes).unwrap_or_default());
            names
                .last()
                .map_or(null_mut(), |name| name.as_ptr().cast_mut())
        };
        *last = (bytes, *known.entry(bytes).or_insert_with(new));
        AtomicPtr::new(last.1)
    };
    let (mut host_before, mut program_before) = ((&[][..], null_mut()), (&[][..], null_mut()));
    let entries = processes
        .into_iter()
        .map(|(host, executable, pid)| ProctableEntry {
            host_name: name(host.as_bytes(), &mut host_before),
            executable_name: name(executable, &mut program_before),
            pid,
        });
    let mut entries: Vec<ProctableEntry> = entries.collect();
    // A reference keeps the linker from leaving these symbols out.
    black_box((
        &MPIR_i_am_starter,
        &MPIR_partial_attach_ok,
        &MPIR_acquired_pre_main,
    ));
    // A debugger may stop this process between any two stores, and must find a valid table.
    MPIR_proctable_size.store(0, Ordering::SeqCst);
    MPIR_proctable.store(entries.as_mut_ptr(), Ordering::SeqCst);
    let size = c_int::try_from(entries.len()).unwrap_or(c_int::MAX);
    MPIR_proctable_size.store(size, Ordering::SeqCst);
    MPIR_debug_state.store(SPAWNED, Ordering::SeqCst);
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = (entries, names);
}

/// Stops in the debugger, if one controls this process.
pub(crate) fn stop_here() {
    if is_debugged() {
        MPIR_Breakpoint();
    }
}
