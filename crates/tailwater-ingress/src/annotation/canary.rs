//! Canary annotations: an Ingress that gets a part of the requests of another one.

use super::table::PREFIX;
use super::value;
use crate::cluster::object::Ingress;
use crate::quote;

/// Rules of a canary, by precedence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CanaryRules {
    /// Name of a header field, in lower case with underscores.
    pub field: Option<String>,
    /// Key of a map for a value of the field; `always` and `never` if it is missing.
    pub field_key: Option<String>,
    /// Name of a cookie.
    pub cookie: Option<String>,
    /// Requests of a hundred, in hundredths of a percent.
    pub share: u32,
}

/// Shares in a whole.
const WHOLE: u32 = 10_000;

impl CanaryRules {
    /// Returns true if the Ingress is a canary.
    pub fn is_canary(ingress: &Ingress) -> bool {
        let text = ingress.metadata.annotations.get(&format!("{PREFIX}canary"));
        text.is_some_and(|text| value::switch(text) == Some(true))
    }

    /// Reads the rules; the second part are annotations with invalid values, which have no effect.
    pub fn read(ingress: &Ingress) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let text =
            |name: &str| ingress.metadata.annotations.get(&format!("{PREFIX}{name}")).map(|text| text.trim());
        let mut checked = |name: &str, is_valid: &dyn Fn(&str) -> bool| {
            let found_text = text(name).filter(|text| !text.is_empty())?;
            if is_valid(found_text) {
                return Some(found_text);
            }
            problems.push(format!("annotation \"{name}\" has an invalid value and no effect"));
            None
        };
        let is_number = |text: &str| text.parse::<u32>().is_ok_and(|number| number <= 1_000_000);
        let is_word =
            |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let field = checked("canary-by-header", &quote::is_field_name);
        let literal = checked("canary-by-header-value", &|text| quote::literal(text).is_some());
        let pattern = checked("canary-by-header-pattern", &|text| quote::verbatim(text).is_some());
        let cookie = checked("canary-by-cookie", &is_word);
        let weight =
            checked("canary-weight", &is_number).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
        let total = checked("canary-weight-total", &is_number).and_then(|text| text.parse::<u32>().ok());
        let total = total.filter(|total| *total > 0).unwrap_or(100);
        // A value that looks like a pattern or a word of the block is escaped by a backslash, as map has it.
        let field_key =
            literal.map(|text| format!("\\{text}")).or_else(|| pattern.map(|text| format!("~{text}")));
        let share = u64::from(weight.min(total)) * u64::from(WHOLE) / u64::from(total);
        let rules = Self {
            field: field.map(|field| field.to_ascii_lowercase().replace('-', "_")),
            field_key: field_key.and_then(|key| quote::verbatim(&key)),
            cookie: cookie.map(str::to_owned),
            share: u32::try_from(share).unwrap_or(WHOLE),
        };
        (rules, problems)
    }

    /// Lines of the block `http` that choose between two groups, and the variable with the choice.
    pub fn lines(&self, id: &str, main: &str, canary: &str) -> (Vec<String>, String) {
        let mut lines = Vec::new();
        let mut choice = format!("\"{main}\"");
        match self.share {
            0 => {}
            WHOLE => choice = format!("\"{canary}\""),
            share => {
                lines.push(format!(
                    "split_clients $request_id $ingress_share_{id} {{ {}.{:02}% \"{canary}\"; * \"{main}\"; }}",
                    share / 100,
                    share % 100
                ));
                choice = format!("$ingress_share_{id}");
            }
        }
        if let Some(cookie) = &self.cookie {
            lines.push(format!(
                "map $cookie_{cookie} $ingress_cookie_{id} {{ default {choice}; \"always\" \"{canary}\"; \"never\" \"{main}\"; }}"
            ));
            choice = format!("$ingress_cookie_{id}");
        }
        if let Some(field) = &self.field {
            let cases = match &self.field_key {
                Some(key) => format!("{key} \"{canary}\";"),
                None => format!("\"always\" \"{canary}\"; \"never\" \"{main}\";"),
            };
            lines.push(format!("map $http_{field} $ingress_field_{id} {{ default {choice}; {cases} }}"));
            choice = format!("$ingress_field_{id}");
        }
        lines.push(format!("map \"\" $ingress_canary_{id} {{ default {choice}; }}"));
        (lines, format!("$ingress_canary_{id}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::object::Metadata;

    fn read(annotations: &[(&str, &str)]) -> (CanaryRules, Vec<String>) {
        let annotations =
            annotations.iter().map(|(name, value)| (format!("{PREFIX}{name}"), (*value).to_owned()));
        let metadata = Metadata { annotations: annotations.collect(), ..Metadata::default() };
        CanaryRules::read(&Ingress { metadata, ..Ingress::default() })
    }

    #[test]
    fn rules_have_their_precedence() {
        let (rules, problems) = read(&[
            ("canary-by-header", "X-Canary"),
            ("canary-by-cookie", "c"),
            ("canary-weight", "5"),
            ("canary-weight-total", "400"),
        ]);
        assert_eq!((rules.share, problems.len()), (125, 0));
        let (lines, variable) = rules.lines("x", "main", "new");
        assert_eq!(variable, "$ingress_canary_x");
        assert!(lines[0].contains("1.25% \"new\"; * \"main\";"), "{lines:?}");
        assert!(
            lines[1].contains("map $cookie_c $ingress_cookie_x { default $ingress_share_x;"),
            "{lines:?}"
        );
        assert!(
            lines[2].contains("map $http_x_canary $ingress_field_x { default $ingress_cookie_x;"),
            "{lines:?}"
        );
    }

    #[test]
    fn odd_rules_have_no_effect() {
        let (rules, problems) =
            read(&[("canary-by-header", "X; }"), ("canary-by-cookie", "a-b"), ("canary-weight", "-1")]);
        assert_eq!((rules, problems.len()), (CanaryRules::default(), 3));
        assert_eq!(read(&[("canary-weight", "500")]).0.share, WHOLE);
    }
}
