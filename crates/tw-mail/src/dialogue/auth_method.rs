//! Methods of authentication, and sets of them.

/// Method of a login, as the auth server is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u16)]
pub enum AuthMethod {
    /// A password: USER and PASS, LOGIN, AUTH PLAIN, AUTH LOGIN.
    #[default]
    Plain,
    /// A password; in the configuration only, where it means AUTH LOGIN.
    Login,
    /// APOP of POP3.
    Apop,
    /// CRAM-MD5 (RFC 2195).
    CramMd5,
    /// EXTERNAL: the certificate of the client.
    External,
    /// No login: SMTP that is told apart by sender and recipient.
    None,
    /// Bearer token in the form of Google and Microsoft.
    Xoauth2,
    /// Bearer token (RFC 7628).
    Oauthbearer,
}

impl AuthMethod {
    /// All methods, in the order in which they are announced.
    pub const ALL: [Self; 8] = [
        Self::Plain,
        Self::Login,
        Self::Apop,
        Self::CramMd5,
        Self::External,
        Self::None,
        Self::Xoauth2,
        Self::Oauthbearer,
    ];

    /// Name of the method in the configuration and for the auth server.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Login => "login",
            Self::Apop => "apop",
            Self::CramMd5 => "cram-md5",
            Self::External => "external",
            Self::None => "none",
            Self::Xoauth2 => "xoauth2",
            Self::Oauthbearer => "oauthbearer",
        }
    }

    /// Name of the mechanism, if it is one of SASL.
    pub const fn mechanism(self) -> Option<&'static str> {
        match self {
            Self::Plain => Some("PLAIN"),
            Self::Login => Some("LOGIN"),
            Self::CramMd5 => Some("CRAM-MD5"),
            Self::External => Some("EXTERNAL"),
            Self::Xoauth2 => Some("XOAUTH2"),
            Self::Oauthbearer => Some("OAUTHBEARER"),
            Self::Apop | Self::None => None,
        }
    }

    /// Returns true if the password of the login is a digest of a challenge.
    pub const fn has_challenge(self) -> bool {
        matches!(self, Self::Apop | Self::CramMd5)
    }

    /// Returns true if the password of the login is a token.
    pub const fn is_token(self) -> bool {
        matches!(self, Self::Xoauth2 | Self::Oauthbearer)
    }
}

/// A set of [`AuthMethod`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AuthMethods(u16);

impl AuthMethods {
    /// A set of these.
    pub const fn of(methods: &[AuthMethod]) -> Self {
        let mut set = 0;
        let mut methods = methods;
        while let [method, rest @ ..] = methods {
            set |= 1 << *method as u16;
            methods = rest;
        }
        Self(set)
    }

    /// Adds a method; returns false if it was there.
    pub fn add(&mut self, method: AuthMethod) -> bool {
        let is_new = !self.has(method);
        self.0 |= 1 << method as u16;
        is_new
    }

    /// Returns true if the method is in the set.
    pub const fn has(self, method: AuthMethod) -> bool {
        self.0 & (1 << method as u16) != 0
    }

    /// Returns true if a method of the set needs a challenge.
    pub fn need_challenge(self) -> bool {
        AuthMethod::ALL.into_iter().any(|method| method.has_challenge() && self.has(method))
    }
}
