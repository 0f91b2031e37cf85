//! Files that a connection needs: certificates of authorities that are trusted, and the token of a control API.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tw_tls::rustls::ClientConfig;
use tw_tls::{BUNDLES, client_config};

/// Servers that are trusted over `https`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Servers that the system trusts.
    System,
    /// Servers with a certificate of an authority in this file.
    Authorities(PathBuf),
    /// Every server.
    Any,
}

impl Trust {
    /// Settings of connections.
    ///
    /// # Errors
    /// There are no certificates of authorities.
    pub(super) fn settings(&self) -> Result<Arc<ClientConfig>, String> {
        let (path, text) = match self {
            Self::Any => return client_config(None),
            Self::Authorities(path) => (path.clone(), read(path)?),
            Self::System => {
                let entry = BUNDLES.iter().find_map(|path| Some((PathBuf::from(path), fs::read(path).ok()?)));
                entry.ok_or_else(|| {
                    format!(
                        "no certificates of authorities are found ({}): name a file (--ca FILE), or trust any (--insecure)",
                        BUNDLES.join(", ")
                    )
                })?
            }
        };
        client_config(Some(&text)).map_err(|error| format!("\"{}\": {error}", path.display()))
    }
}

/// The field `Authorization` with the token in the first line of a file.
///
/// # Errors
/// The file cannot be read, or its first line is no token.
pub fn token_field(path: &Path) -> Result<String, String> {
    let text = read(path)?;
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    let token = str::from_utf8(line)
        .ok()
        .filter(|token| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()));
    let token = token.ok_or_else(|| format!("no token in \"{}\"", path.display()))?;
    Ok(format!("Authorization: Bearer {token}"))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("\"{}\": {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use tw_testkit::TempDir;

    use super::*;

    #[test]
    fn tokens_are_first_lines() {
        let dir = TempDir::new("top").unwrap();
        for (text, expected) in [
            ("abc\n", Some("Authorization: Bearer abc")),
            ("abc \r\nmore", Some("Authorization: Bearer abc")),
            ("", None),
            ("\nabc", None),
            ("a b", None),
            ("a\u{e9}", None),
        ] {
            let path = dir.write("token", text).unwrap();
            assert_eq!(token_field(&path).ok().as_deref(), expected, "{text:?}");
        }
        assert!(token_field(&dir.join("none")).is_err());
    }

    #[test]
    fn files_without_certificates_are_refused() {
        let dir = TempDir::new("top").unwrap();
        let path = dir.write("ca.pem", "nothing").unwrap();
        assert!(Trust::Authorities(path).settings().is_err());
        assert!(Trust::Authorities(dir.join("none")).settings().is_err());
        assert!(Trust::Any.settings().is_ok());
    }
}
