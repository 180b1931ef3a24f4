//! A proxy that breaks one rule of the server behind it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Bytes of one unit: for the other end, and for the end that has sent it.
pub(crate) type Change = fn(&mut Vec<u8>) -> Vec<u8>;

/// Changes to the messages of clients and of the server. The reply to AUTH, and a key, count as units.
#[derive(Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) client: Change,
    pub(crate) server: Change,
}

pub(crate) fn nothing(_: &mut Vec<u8>) -> Vec<u8> {
    Vec::new()
}

/// Listens before a server, as long as the test runs.
pub(crate) fn front(server: &str, fault: Fault) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = server.to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
            let (back, forth) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            // Answers of both threads to one client do not mix.
            let lock = Arc::new(Mutex::new(()));
            let other = Arc::clone(&lock);
            std::thread::spawn(move || pass(client, forth, fault.client, true, &lock));
            std::thread::spawn(move || pass(server, back, fault.server, false, &other));
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, change: Change, client: bool, lock: &Mutex<()>) {
    let mut count = 0;
    while let Some(mut unit) = next(&mut from, client && count == 1) {
        count += 1;
        let back = change(&mut unit);
        let one = lock.lock().unwrap();
        let written = to.write_all(&unit).and_then(|()| from.write_all(&back));
        drop(one);
        if written.is_err() || unit == b"close" {
            let _ = from.shutdown(Shutdown::Both);
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// A unit, or the key, which follows the first of a client where it is no IMPI.
fn next(from: &mut TcpStream, may_be_key: bool) -> Option<Vec<u8>> {
    let mut head = vec![0; 8];
    from.read_exact(&mut head).ok()?;
    let key = may_be_key && !head.starts_with(b"IMPI");
    let length = u32::from_be_bytes(head[4..].try_into().unwrap());
    let mut rest = vec![0; if key { 0 } else { length as usize }];
    from.read_exact(&mut rest).ok()?;
    head.extend(rest);
    Some(head)
}
