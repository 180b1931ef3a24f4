//! Connections under way, which end when the certificate at their other end is revoked.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Context;

use futures_util::task::AtomicWaker;
use rustls::pki_types::CertificateDer;
use tracing::warn;

use crate::identity::Identity;
use crate::revocation_lists::RevocationLists;

#[derive(Debug)]
pub(super) struct ConnectionLife {
    /// Certificate chain of the other side.
    chain: Vec<CertificateDer<'static>>,
    is_ended: AtomicBool,
    reader: AtomicWaker,
}

impl ConnectionLife {
    /// Fails when it has ended; otherwise wakes its reader then.
    pub(super) fn check(&self, context: &Context<'_>) -> io::Result<()> {
        self.reader.register(context.waker());
        match self.is_ended.load(Ordering::Acquire) {
            true => Err(io::Error::other("its certificate was revoked")),
            false => Ok(()),
        }
    }

    /// Ends if the other side has been revoked.
    pub(super) fn end_if(&self, revoked: &RevocationLists) {
        let in_list = self.chain.iter().any(|one| revoked.contains(one));
        if !in_list || self.is_ended.swap(true, Ordering::Release) {
            return;
        }
        let own = self.chain.first().map(|own| Identity::from_der(own));
        let whose = match own {
            Some(Ok(identity)) => identity.to_string(),
            _ => "a client".to_owned(),
        };
        warn!("closed a connection with {whose}: its certificate was revoked");
        self.reader.wake();
    }
}

/// All open connections of a node.
#[derive(Debug, Default)]
pub(super) struct OpenConnections(Mutex<Vec<Weak<ConnectionLife>>>);

impl OpenConnections {
    /// Watches a connection as long as the returned value is kept.
    pub(super) fn add(&self, chain: Option<&[CertificateDer<'_>]>) -> Arc<ConnectionLife> {
        let chain = chain.unwrap_or_default().iter();
        let life = Arc::new(ConnectionLife {
            chain: chain.map(|one| one.clone().into_owned()).collect(),
            is_ended: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Not at each one: most of many are alive.
        if all.len() == all.capacity() {
            all.retain(|life| life.strong_count() > 0);
        }
        all.push(Arc::downgrade(&life));
        life
    }

    /// Closes connections whose other end's certificate was revoked.
    pub(super) fn end(&self, revoked: &RevocationLists) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for life in all.iter().filter_map(Weak::upgrade) {
            life.end_if(revoked);
        }
    }
}
