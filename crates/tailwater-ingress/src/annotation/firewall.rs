//! Web application firewall: `enable-modsecurity`, `enable-owasp-core-rules`, `modsecurity-snippet`, `modsecurity-transaction-id`.
//!
//! The files of rules are those of the controller's options. A value that cannot be used denies the locations, because a firewall
//! protects them.

use super::policy::Reader;
use super::value;
use crate::quote;

impl Reader<'_> {
    /// Directives of the firewall.
    pub(super) fn read_firewall(&mut self) {
        let core_rules = self.required("enable-owasp-core-rules", value::switch).unwrap_or_default();
        let on = self.required("enable-modsecurity", value::switch);
        let has_snippet = self.text("modsecurity-snippet").is_some();
        if !on.unwrap_or(core_rules || has_snippet) {
            return;
        }
        let files = &self.options.firewall;
        let mut lines = vec!["modsecurity on;".to_owned()];
        lines.extend(files.settings.iter().map(|file| format!("modsecurity_rules_file {file};")));
        if core_rules {
            match &files.core_rules {
                Some(file) => lines.push(format!("modsecurity_rules_file {file};")),
                None => self.policy.deny(
                    "annotation \"enable-owasp-core-rules\" needs the option --owasp-core-rules".to_owned(),
                ),
            }
        }
        if has_snippet {
            match self.rules_snippet() {
                Some(rules) => lines.push(format!("modsecurity_rules {rules};")),
                None => self.policy.deny(
                    "annotation \"modsecurity-snippet\" needs --allow-snippets, and must have no control characters".to_owned(),
                ),
            }
        }
        if lines.len() == 1 {
            self.policy.deny(
                "annotation \"enable-modsecurity\" needs the option --modsecurity-rules, or other rules"
                    .to_owned(),
            );
        }
        if let Some(id) = self.checked("modsecurity-transaction-id", quote::template) {
            lines.push(format!("modsecurity_transaction_id {id};"));
        }
        self.policy.location.extend(lines);
    }

    /// The rules of the snippet as a word of the configuration. Rules can read files.
    fn rules_snippet(&self) -> Option<String> {
        let text = self.text("modsecurity-snippet").filter(|_| self.options.allow_snippets)?;
        let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
        // `${env:…}` is a value of the environment of the controller.
        if !text.chars().all(is_plain) || text.contains("${env:") {
            return None;
        }
        let escaped = text.replace('\\', "\\\\").replace('\'', "\\'");
        Some(format!("'{escaped}'"))
    }
}
