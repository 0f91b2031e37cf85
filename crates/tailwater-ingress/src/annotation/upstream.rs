//! Annotations about endpoints: protocol, balancing and sessions.

use super::balancing::balancing;
use super::policy::{Protocol, Reader};
use super::value;
use crate::quote;

impl Reader<'_> {
    /// Protocol, balancing and sessions.
    pub(super) fn read_upstream(&mut self) {
        let protocol = |text: &str| match &*text.to_ascii_uppercase() {
            "HTTP" | "AUTO_HTTP" => Some(Protocol::Http),
            "HTTPS" => Some(Protocol::Https),
            "GRPC" => Some(Protocol::Grpc),
            "GRPCS" => Some(Protocol::Grpcs),
            "FCGI" => Some(Protocol::Fastcgi),
            _ => None,
        };
        // An invalid protocol must not be ignored: plain text would reveal what should be encrypted.
        self.policy.protocol = self.required("backend-protocol", protocol).unwrap_or_default();
        self.policy.service_upstream = self.switch("service-upstream").is_some_and(|on| on);
        self.read_balancing();
        self.read_sessions();
        self.read_fastcgi();
    }

    pub(super) fn read_balancing(&mut self) {
        let methods = |text: &str| balancing(text);
        let method = self.checked("load-balance", methods);
        if let Some(key) = self.checked("upstream-hash-by", quote::template) {
            self.policy.group.push(format!("hash {key} consistent;"));
        } else if let Some(line) =
            method.or_else(|| self.options.globals.balancing.clone()).filter(|line| !line.is_empty())
        {
            self.policy.group.push(line);
        }
    }

    pub(super) fn read_sessions(&mut self) {
        match self.text("affinity").map(str::trim) {
            None => return,
            Some("cookie") => {}
            Some(_) => return self.invalid("affinity"),
        }
        let is_name = |text: &str| quote::is_field_name(text).then(|| text.to_owned());
        let name = self.checked("session-cookie-name", is_name).unwrap_or_else(|| "INGRESSCOOKIE".to_owned());
        let is_path = |text: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
            (text.starts_with('/') && text.bytes().all(plain)).then(|| text.to_owned())
        };
        let path = self.checked("session-cookie-path", is_path).unwrap_or_else(|| "/".to_owned());
        let mut line = format!("sticky cookie {name} path={path} httponly");
        let age = self.number("session-cookie-max-age");
        if let Some(age) = age.or_else(|| self.number("session-cookie-expires")).filter(|age| *age > 0) {
            line += &format!(" expires={age}s");
        }
        let is_host = |text: &str| quote::is_host(text.trim_start_matches('.')).then(|| text.to_owned());
        if let Some(domain) = self.checked("session-cookie-domain", is_host) {
            line += &format!(" domain={domain}");
        }
        let site = |text: &str| {
            let site = text.to_ascii_lowercase();
            ["strict", "lax", "none"].contains(&&*site).then_some(site)
        };
        if let Some(site) = self.checked("session-cookie-samesite", site) {
            line += &format!(" samesite={site}");
        }
        if self.text("session-cookie-secure").is_some_and(|text| value::switch(text) == Some(true)) {
            line += " secure";
        }
        self.policy.group.push(line + ";");
    }
}
