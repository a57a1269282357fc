//! Static credentials.

use std::fmt;

use aws_credential_types::provider::SharedCredentialsProvider;

/// Access key for a service, in place of the credentials that AWS's own tools would find.
///
/// ```
/// use nsbridge_aws::Credentials;
///
/// let keys = Credentials::new("AKIDEXAMPLE", "secret").with_session_token("token");
/// assert_eq!(format!("{keys:?}"), "Credentials(AKIDEXAMPLE)");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    access_key: String,
    secret_key: String,
    session_token: Option<String>,
}

impl Credentials {
    /// Creates credentials from an access key id and its secret key.
    pub fn new(access_key: impl Into<String>, secret_key: impl Into<String>) -> Self {
        Self { access_key: access_key.into(), secret_key: secret_key.into(), session_token: None }
    }

    /// Sets the session token of temporary credentials.
    #[must_use]
    pub fn with_session_token(self, token: impl Into<String>) -> Self {
        Self { session_token: Some(token.into()), ..self }
    }

    pub(crate) fn provider(&self) -> SharedCredentialsProvider {
        let Self { access_key, secret_key, session_token } = self;
        let token = session_token.clone();
        let keys =
            aws_credential_types::Credentials::new(access_key, secret_key, token, None, "nsbridge");
        SharedCredentialsProvider::new(keys)
    }
}

/// Prints the access key id, never a secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.access_key)
    }
}
