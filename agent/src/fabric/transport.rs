//! Requests to a REST service over HTTP/1.1, with TLS for `https`. One connection for each: they are few, and a connection
//! that has been idle for hours would be closed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use wireup::failure::AnyError;
use wireup_core::fabric::rest::{ANSWER_MAX, Answer, HttpRequest};
use wireup_core::job::spec::FabricSpec;

/// How long one request may take.
const LIMIT: Duration = Duration::from_secs(15);

/// The authorities that distributions trust: Debian's file, and Fedora's.
const AUTHORITIES: [&str; 2] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
];

/// Most bytes of a token.
const TOKEN_MAX: usize = 16 * 1024;

/// Why a service cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    #[error("{address} is no address")]
    Address { address: String },
    #[error("--fabric-ca {}: {reason}", path.display())]
    Authorities { path: PathBuf, reason: AnyError },
}

/// A service with an address.
pub(super) struct Service {
    host: String,
    port: u16,
    /// In front of the paths of requests.
    base: String,
    /// As a client names it in `Host`.
    authority: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    token: Option<PathBuf>,
}

impl Service {
    pub(super) fn new(address: &str, spec: &FabricSpec) -> Result<Self, ServiceError> {
        let wrong = || ServiceError::Address {
            address: address.to_owned(),
        };
        let uri: hyper::Uri = address.parse().map_err(|_| wrong())?;
        let host = uri.host().ok_or_else(wrong)?;
        let host = host.trim_matches(['[', ']']).to_owned();
        let secure = uri.scheme_str() == Some("https");
        let tls = match secure {
            false => None,
            true => {
                let name = ServerName::try_from(host.clone()).map_err(|_| wrong())?;
                Some((connector(spec.authorities.as_deref())?, name))
            }
        };
        Ok(Self {
            port: uri.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            base: uri.path().trim_end_matches('/').to_owned(),
            authority: uri.authority().ok_or_else(wrong)?.to_string(),
            host,
            tls,
            token: spec.token.clone(),
        })
    }

    pub(super) async fn ask(&self, request: &HttpRequest) -> Answer {
        match timeout(LIMIT, self.exchange(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Answer::Lost(chain(&*error)),
            Err(_) => Answer::Lost(format!("no answer within {} s", LIMIT.as_secs())),
        }
    }

    async fn exchange(&self, request: &HttpRequest) -> Result<Answer, AnyError> {
        let token = self.token.as_deref().map(token).transpose()?;
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        match &self.tls {
            None => self.over(stream, request, token).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await?;
                self.over(stream, request, token).await
            }
        }
    }

    async fn over<S>(
        &self,
        stream: S,
        request: &HttpRequest,
        token: Option<HeaderValue>,
    ) -> Result<Answer, AnyError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        // It ends with its sender.
        tokio::spawn(connection);
        let mut built = hyper::Request::builder()
            .method(request.method)
            .uri(format!("{}{}", self.base, request.path))
            .header(HOST, &self.authority);
        if request.body.is_some() {
            built = built.header(CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &request.idempotency {
            built = built.header("idempotency-key", key);
        }
        if let Some(token) = token {
            built = built.header(AUTHORIZATION, token);
        }
        let body = Bytes::from(request.body.clone().unwrap_or_default());
        let answer = sender.send_request(built.body(Full::new(body))?).await?;
        let code = answer.status().as_u16();
        let mut parts = Limited::new(answer.into_body(), ANSWER_MAX);
        let mut body = Zeroizing::new(Vec::with_capacity(4096));
        while let Some(part) = parts.frame().await {
            if let Ok(data) = part?.into_data() {
                body.extend_from_slice(&data);
            }
        }
        Ok(Answer::Status(code, body))
    }
}

/// The header with the token of a file.
fn token(path: &Path) -> Result<HeaderValue, AnyError> {
    let named = |error: AnyError| format!("--fabric-token {}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(error.into()))?;
    let text = Zeroizing::new(text);
    if text.len() > TOKEN_MAX {
        return Err(named("too long".into()).into());
    }
    let line = Zeroizing::new(format!("Bearer {}", text.trim()));
    let mut value = HeaderValue::from_str(&line)
        .map_err(|_| named("a token has printable characters only".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn connector(given: Option<&Path>) -> Result<TlsConnector, ServiceError> {
    let system = AUTHORITIES.iter().map(Path::new);
    let path = given.or_else(|| system.clone().find(|path| path.exists()));
    let path = path.unwrap_or_else(|| Path::new(AUTHORITIES[0]));
    let wrong = |reason: AnyError| ServiceError::Authorities {
        path: path.to_owned(),
        reason,
    };
    let certificates =
        CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string().into()))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates.filter_map(Result::ok));
    if roots.is_empty() {
        return Err(wrong("it has no certificate".into()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(error.into()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// An error with its causes, which hyper hides.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(refused) = error.downcast_ref::<io::Error>()
        && refused.get_ref().is_none()
    {
        return refused.to_string();
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(found) = cause {
        text = format!("{text}: {found}");
        cause = found.source();
    }
    text
}
