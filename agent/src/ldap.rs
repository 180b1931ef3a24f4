//! A client of a directory (LDAP, version 3): one connection, opened by the first call and again after a loss.
//!
//! Rule: a call that failed may have been executed, or may be executed later; none is repeated here. Rule: a change or
//! removal of an entry is executed only if the entry is as it was read, by the assertion control of RFC 4528.

mod ldap_settings;

use std::collections::HashSet;
use std::time::Duration;

use ldap3::adapters::{Adapter, EntriesOnly, PagedResults};
use ldap3::controls::{Assertion, MakeCritical as _};
use ldap3::{
    Ldap, LdapConnAsync, LdapConnSettings, LdapError, LdapResult, Mod, Scope, SearchEntry,
    ldap_escape,
};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use self::ldap_settings::Bind;
pub(crate) use self::ldap_settings::{LdapSettings, LdapSettingsError};

/// Timeout of an answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Timeout of an answer with many entries.
const LONG_ANSWER: Duration = Duration::from_secs(60);

/// Entries of one message: servers have limits.
const PAGE: i32 = 250;

// Result codes. Source: RFC 4511, appendix A, and RFC 4528.
const DONE: u32 = 0;
const NO_ENTRY: u32 = 32;
const EXISTS: u32 = 68;
const NOT_SO: u32 = 122;

/// Error: a call was not answered.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum DirectoryError {
    #[error("cannot reach the directory {server} ({reason})")]
    Unreachable { server: String, reason: String },
    #[error("the directory {server} refused the request ({reason}){}", hint(*.code))]
    Refused {
        server: String,
        code: u32,
        reason: String,
    },
}

/// Returns the remedy for a result code, for the administrator.
fn hint(code: u32) -> &'static str {
    match code {
        3 | 4 | 11 => ": its limits are too low for the request",
        8 | 13 => ": use TLS, or name a user (bind-dn)",
        12 => ": the directory must support the assertion control (RFC 4528)",
        17 | 21 | 65 => ": check whether it has wireup's schema",
        NO_ENTRY => ": check whether the base of names exists",
        49 => ": correct the name or the password",
        50 => ": this user lacks the permission",
        _ => "",
    }
}

/// The attributes of an entry, each with its first value.
#[derive(Clone, Debug)]
pub(crate) struct LdapEntry(Vec<(String, Vec<u8>)>);

impl LdapEntry {
    fn new(found: SearchEntry) -> Self {
        let texts = found.attrs.into_iter().filter_map(|(name, values)| {
            let first = values.into_iter().next()?;
            Some((name, first.into_bytes()))
        });
        let octets = found.bin_attrs.into_iter();
        let octets = octets.filter_map(|(name, values)| Some((name, values.into_iter().next()?)));
        Self(texts.chain(octets).collect())
    }

    pub(crate) fn octets(&self, name: &str) -> Option<&[u8]> {
        let mut all = self.0.iter();
        all.find(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| &**value)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.octets(name)?).ok()
    }
}

/// Attributes that are to be written; those without a value are removed.
pub(crate) type Attributes = Vec<(&'static str, Option<Vec<u8>>)>;

/// Result of the addition of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddOutcome {
    Done,
    /// An entry of that name exists.
    Exists,
    /// The parent entry does not exist.
    NoParent,
}

#[derive(Debug)]
pub(crate) struct LdapClient {
    settings: LdapSettings,
    link: Mutex<Link>,
}

#[derive(Debug, Default)]
struct Link {
    ldap: Option<Ldap>,
    /// Time and error of the last failed connection.
    failed: Option<(Instant, DirectoryError)>,
}

/// A task that ends with this.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl LdapClient {
    /// Makes a client that connects at the first request. Needs a runtime.
    pub(crate) fn new(settings: LdapSettings) -> Self {
        let link = Mutex::default();
        Self { settings, link }
    }

    /// Adds an entry with all these attributes.
    pub(crate) async fn add(
        &self,
        dn: String,
        class: &'static str,
        attributes: Attributes,
    ) -> Result<AddOutcome, DirectoryError> {
        let class = [("objectClass", Some(class.as_bytes().to_vec()))];
        let all = class.into_iter().chain(attributes);
        let all = all.filter_map(|(name, value)| Some((name.into(), HashSet::from([value?]))));
        let all: Vec<(Vec<u8>, _)> = all.collect();
        let call = move |mut ldap: Ldap| async move { ldap.add(&dn, all).await };
        match self.result(call, &[DONE, EXISTS, NO_ENTRY]).await? {
            DONE => Ok(AddOutcome::Done),
            EXISTS => Ok(AddOutcome::Exists),
            _ => Ok(AddOutcome::NoParent),
        }
    }

    /// Changes attributes of an entry, with a condition only if the entry has that value; returns whether it was
    /// changed.
    pub(crate) async fn change(
        &self,
        dn: String,
        condition: Option<(&'static str, &str)>,
        attributes: Attributes,
    ) -> Result<bool, DirectoryError> {
        let all = attributes.into_iter();
        let all = all.map(|(name, value)| Mod::Replace(name.into(), value.into_iter().collect()));
        let all: Vec<Mod<Vec<u8>>> = all.collect();
        let condition = condition.map(|(attribute, value)| equals(attribute, value));
        let call = move |mut ldap: Ldap| async move {
            if let Some(filter) = condition {
                ldap.with_controls(Assertion { filter }.critical());
            }
            ldap.modify(&dn, all).await
        };
        Ok(self.result(call, &[DONE, NO_ENTRY, NOT_SO]).await? == DONE)
    }

    /// Removes an entry, with a condition only if the entry has that value; returns whether it was removed.
    pub(crate) async fn remove(
        &self,
        dn: String,
        condition: Option<(&'static str, &str)>,
    ) -> Result<bool, DirectoryError> {
        let condition = condition.map(|(attribute, value)| equals(attribute, value));
        let call = move |mut ldap: Ldap| async move {
            if let Some(filter) = condition {
                ldap.with_controls(Assertion { filter }.critical());
            }
            ldap.delete(&dn).await
        };
        Ok(self.result(call, &[DONE, NO_ENTRY, NOT_SO]).await? == DONE)
    }

    /// Reads an entry that a filter selects.
    pub(crate) async fn read(
        &self,
        dn: String,
        filter: &'static str,
        attributes: &'static [&'static str],
    ) -> Result<Option<LdapEntry>, DirectoryError> {
        let call = move |mut ldap: Ldap| async move {
            let found = ldap.search(&dn, Scope::Base, filter, attributes).await?;
            let entry = found.0.into_iter().next().map(SearchEntry::construct);
            Ok((entry.map(LdapEntry::new), found.1))
        };
        let (entry, result) = self.call(ANSWER, call).await?;
        self.check(result, &[DONE, NO_ENTRY])?;
        Ok(entry)
    }

    /// Returns the entries below one that a filter selects; none if that one does not exist.
    pub(crate) async fn list(
        &self,
        dn: String,
        filter: String,
        attributes: &'static [&'static str],
    ) -> Result<Vec<LdapEntry>, DirectoryError> {
        let call = move |mut ldap: Ldap| async move {
            let pages: Vec<Box<dyn Adapter<'_, _, _>>> = vec![
                Box::new(EntriesOnly::new()),
                Box::new(PagedResults::new(PAGE)),
            ];
            let search =
                ldap.streaming_search_with(pages, &dn, Scope::OneLevel, &filter, attributes);
            let mut search = search.await?;
            let mut entries = Vec::new();
            while let Some(entry) = search.next().await? {
                entries.push(LdapEntry::new(SearchEntry::construct(entry)));
            }
            Ok((entries, search.finish().await))
        };
        let (entries, result) = self.call(LONG_ANSWER, call).await?;
        self.check(result, &[DONE, NO_ENTRY])?;
        Ok(entries)
    }

    async fn result<F>(
        &self,
        call: impl FnOnce(Ldap) -> F,
        expected: &[u32],
    ) -> Result<u32, DirectoryError>
    where
        F: Future<Output = Result<LdapResult, LdapError>> + Send + 'static,
    {
        let result = self.call(ANSWER, call).await?;
        self.check(result, expected)
    }

    /// Returns the result's code, if it is one of the expected ones.
    fn check(&self, result: LdapResult, expected: &[u32]) -> Result<u32, DirectoryError> {
        match result.rc {
            code if expected.contains(&code) => Ok(code),
            _ => Err(self.refused(&result)),
        }
    }

    async fn call<T, F>(
        &self,
        limit: Duration,
        call: impl FnOnce(Ldap) -> F,
    ) -> Result<T, DirectoryError>
    where
        F: Future<Output = Result<T, LdapError>> + Send + 'static,
        T: Send + 'static,
    {
        let ldap = self.link().await?;
        // The library panics over answers that the protocol does not have.
        let task = tokio::spawn(call(ldap));
        let _ends = AbortOnDrop(task.abort_handle());
        let reason = match timeout(limit, task).await {
            Ok(Ok(Ok(answer))) => return Ok(answer),
            Ok(Ok(Err(LdapError::LdapResult { result }))) => return Err(self.refused(&result)),
            Ok(Ok(Err(error))) => self.words(&error),
            Ok(Err(_)) => "the reply violates the protocol".to_owned(),
            Err(_) => format!("no reply within {} s", limit.as_secs()),
        };
        // The next call has another connection.
        self.link.lock().await.ldap = None;
        Err(self.unreachable(reason))
    }

    /// Returns the connection, which it opens if there is none.
    async fn link(&self) -> Result<Ldap, DirectoryError> {
        let requested_at = Instant::now();
        let mut link = self.link.lock().await;
        if let Some(ldap) = &mut link.ldap
            && !ldap.is_closed()
        {
            return Ok(ldap.clone());
        }
        // One attempt is for all that waited for it.
        if let Some((at, error)) = &link.failed
            && *at >= requested_at
        {
            return Err(error.clone());
        }
        let connected = match timeout(ANSWER, self.connect()).await {
            Ok(Ok(ldap)) => Ok(ldap),
            Ok(Err(LdapError::LdapResult { result })) => Err(self.refused(&result)),
            Ok(Err(error)) => Err(self.unreachable(self.words(&error))),
            Err(_) => Err(self.unreachable(format!("no connection within {} s", ANSWER.as_secs()))),
        };
        match connected {
            Ok(ldap) => Ok(link.ldap.insert(ldap).clone()),
            Err(error) => {
                link.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<Ldap, LdapError> {
        let mut settings = LdapConnSettings::new();
        if let Some(tls) = &self.settings.tls {
            // That counts for ldap://, and is ignored for ldaps://.
            settings = settings.set_config(tls.clone()).set_starttls(true);
        }
        let url = &self.settings.url;
        let (connection, mut ldap) = LdapConnAsync::from_url_with_settings(settings, url).await?;
        // It ends with the connection, or with the last handle.
        tokio::spawn(connection.drive());
        match &self.settings.bind {
            Bind::Anonymous => {}
            Bind::External => {
                ldap.sasl_external_bind().await?.success()?;
            }
            Bind::Password { dn, password } => {
                ldap.simple_bind(dn, password.expose()).await?.success()?;
            }
        }
        Ok(ldap)
    }

    fn server(&self) -> String {
        let url = &self.settings.url;
        let host = url.host_str().unwrap_or_default().replace("%2f", "/");
        let port = url.port().map(|port| format!(":{port}"));
        format!("{}://{host}{}", url.scheme(), port.unwrap_or_default())
    }

    fn unreachable(&self, reason: String) -> DirectoryError {
        DirectoryError::Unreachable {
            server: self.server(),
            reason,
        }
    }

    fn refused(&self, result: &LdapResult) -> DirectoryError {
        let text = &result.text;
        DirectoryError::Refused {
            server: self.server(),
            code: result.rc,
            reason: match &**text {
                "" => format!("code {}", result.rc),
                text => format!("code {}: {text}", result.rc),
            },
        }
    }

    fn words(&self, error: &LdapError) -> String {
        match error {
            LdapError::Io { source } => source.to_string(),
            LdapError::ResultRecv { .. } | LdapError::OpSend { .. } | LdapError::EndOfStream => {
                "the connection was lost".to_owned()
            }
            other => other.to_string(),
        }
    }
}

/// Returns a filter for entries with a value.
fn equals(attribute: &str, value: &str) -> String {
    format!("({attribute}={})", ldap_escape(value))
}
