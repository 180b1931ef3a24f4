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
use rustls::CertificateError;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use wireup_core::fabric::manager_rest::{ANSWER_MAX, HttpRequest, ManagerReply};
use wireup_core::failure::AnyError;
use wireup_core::job::spec::FabricSpec;

use crate::site_services::{self, FileError};
use crate::tls::verify;

/// Timeout of one request.
const LIMIT: Duration = Duration::from_secs(15);

/// Most bytes of a token.
const TOKEN_MAX: usize = 16 * 1024;

/// Reason for which a service cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    #[error("invalid address {address}")]
    Address { address: String },
    #[error("cacert = {0}")]
    Authorities(FileError),
}

/// A connection, with TLS or without.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// TLS settings for a service with `https`.
struct ServiceTls {
    connector: TlsConnector,
    name: ServerName<'static>,
    authorities: PathBuf,
}

/// A service with an address.
pub(super) struct ServiceUrl {
    host: String,
    port: u16,
    /// In front of the paths of requests.
    base: String,
    /// Address in the form of the `Host` header.
    authority: String,
    tls: Option<ServiceTls>,
    token: Option<PathBuf>,
}

impl ServiceUrl {
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
                let authorities = site_services::authorities(spec.authorities.as_deref());
                let config =
                    site_services::tls_client(authorities).map_err(ServiceError::Authorities)?;
                Some(ServiceTls {
                    connector: TlsConnector::from(Arc::new(config)),
                    name,
                    authorities: authorities.to_owned(),
                })
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

    pub(super) async fn send_request(&self, request: &HttpRequest) -> ManagerReply {
        let deadline = Instant::now() + LIMIT;
        let late = || format!("no reply within {} s", LIMIT.as_secs());
        let token = match self.token.as_deref().map(token).transpose() {
            Ok(token) => token,
            Err(error) => return ManagerReply::Impossible(error.to_string()),
        };
        let stream = match timeout_at(deadline, self.connect()).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(unsent)) => return unsent,
            Err(_) => return ManagerReply::Unsent(late()),
        };
        match timeout_at(deadline, self.exchange(stream, request, token)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => ManagerReply::Lost(chain(&*error)),
            Err(_) => ManagerReply::Lost(late()),
        }
    }

    /// Returns a connection to the service, or the answer if there is none.
    async fn connect(&self) -> Result<Box<dyn Stream>, ManagerReply> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(|error| ManagerReply::Unsent(chain(&error)))?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let connected = tls.connector.connect(tls.name.clone(), stream).await;
        match connected {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(without_tls(&error, &tls.authorities)),
        }
    }

    async fn exchange(
        &self,
        stream: Box<dyn Stream>,
        request: &HttpRequest,
        token: Option<HeaderValue>,
    ) -> Result<ManagerReply, AnyError> {
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
        Ok(ManagerReply::Status(code, body))
    }
}

/// Returns the header with the token of a file.
fn token(path: &Path) -> Result<HeaderValue, AnyError> {
    let named = |error: AnyError| format!("token-file = {}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(error.into()))?;
    let text = Zeroizing::new(text);
    if text.len() > TOKEN_MAX {
        return Err(named("too long".into()).into());
    }
    let line = Zeroizing::new(format!("Bearer {}", text.trim()));
    let mut value = HeaderValue::from_str(&line)
        .map_err(|_| named("the token must have printable characters only".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Converts an error before the end of the TLS handshake: one of the service's certificate, or another one.
fn without_tls(error: &io::Error, authorities: &Path) -> ManagerReply {
    use CertificateError::{BadSignature, InvalidPurpose, InvalidPurposeContext, UnknownIssuer};
    use rustls::Error::{InvalidCertificate, InvalidMessage, PeerIncompatible};
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    ManagerReply::Impossible(match cause {
        // Another authority of the same name looks like a forged signature.
        Some(InvalidCertificate(UnknownIssuer | BadSignature)) => format!(
            "no authority in {} signed its certificate; name the file with its authority: cacert = \"FILE\" in fabric.toml",
            authorities.display()
        ),
        Some(InvalidCertificate(InvalidPurpose | InvalidPurposeContext { .. })) => {
            "its certificate is not a server certificate".to_owned()
        }
        Some(other @ (InvalidCertificate(_) | InvalidMessage(_) | PeerIncompatible(_))) => {
            verify::theirs(other)
        }
        _ => return ManagerReply::Unsent(chain(error)),
    })
}

/// Returns the text of an error with its causes, which hyper hides.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(refused) = error.downcast_ref::<io::Error>()
        && refused.get_ref().is_none()
    {
        return refused.to_string();
    }
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
