//! Private certificate authority of TLS listeners and of their clients.

use std::fmt;
use std::net::Ipv4Addr;

use anyhow::Result;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair,
};

/// Private certificate authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Host name in the certificates of listeners. Clients that use an address of the host refuse them.
    pub const HOST: &str = "localhost";

    /// Creates an authority with a new key.
    ///
    /// # Errors
    ///
    /// Returns an error if no key can be generated.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Returns the authority's own certificate.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Creates a key, and a certificate for this host or user.
    ///
    /// # Errors
    ///
    /// Returns an error if `name` is not a host name.
    pub fn issue(&self, name: &str) -> Result<(Certificate, KeyPair)> {
        let mut params = CertificateParams::new([name.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.0)?, key))
    }

    /// Returns the Erlang terms that give the application `rabbit` a TLS listener on `port`, with a new
    /// certificate and further `ssl_options`. The node may see another file system, so the terms contain
    /// no names of files.
    ///
    /// # Errors
    ///
    /// Returns an error if no key can be generated.
    pub fn listener(&self, port: u16, options: &[&str]) -> Result<String> {
        let (certificate, key) = self.issue(Self::HOST)?;
        let mut terms = vec![
            format!("{{cacerts, [{}]}}", erlang(self.0.der())),
            format!("{{cert, {}}}", erlang(certificate.der())),
            format!("{{key, {{'PrivateKeyInfo', {}}}}}", erlang(&key.serialize_der())),
        ];
        terms.extend(options.iter().map(|option| (*option).to_owned()));
        let (host, terms) = (Ipv4Addr::LOCALHOST, terms.join(", "));
        Ok(format!("{{ssl_listeners, [{{\"{host}\", {port}}}]}}, {{ssl_options, [{terms}]}}"))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// Returns bytes as an Erlang term.
fn erlang(bytes: &[u8]) -> String {
    let bytes: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("<<{}>>", bytes.join(","))
}
