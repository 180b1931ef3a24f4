//! Secrets that prove membership in a job, from the environment, and random bytes.

use std::io;

use wireup_impi_core::auth::{AuthError, CHALLENGE, Secrets};

/// Returns the methods that the environment enables.
///
/// # Errors
/// When a value cannot be used, or no method is enabled.
pub fn from_environment() -> Result<Secrets, AuthError> {
    Secrets::from_environment(|name| {
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    })
}

/// Reads the secrets for a test that plays a client or a server. Without any method, `IMPI_AUTH_NONE` is enabled.
///
/// # Errors
/// When a value cannot be used.
pub fn test_secrets() -> Result<Secrets, AuthError> {
    match from_environment() {
        Err(AuthError::NoMethod) => Ok(Secrets {
            none: true,
            ..Secrets::default()
        }),
        secrets => secrets,
    }
}

/// Makes a challenge that was never used before.
///
/// # Errors
/// When the kernel has no random bytes.
pub fn challenge() -> io::Result<[u8; CHALLENGE]> {
    let mut bytes = [0; CHALLENGE];
    let mut filled = 0;
    while filled < bytes.len() {
        filled +=
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
