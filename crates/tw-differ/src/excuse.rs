//! Differences that are wanted, from `data/excused.txt`: each stands for a row of `docs/nginx-differences.md`.

use crate::case::Case;
use crate::compare::Difference;
use crate::node;

/// The table, as it is kept.
const TABLE: &str = include_str!("../data/excused.txt");

/// Line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Excuse {
    /// Beginning of the kind.
    kind: &'static str,
    /// Text in the value of nginx; empty for any, and `""` for an empty value.
    nginx: &'static str,
    /// Text in the value of Tailwater, likewise.
    tailwater: &'static str,
    /// Text in the configuration or in the requests; empty for any.
    part: &'static str,
    /// Words of the row in the document.
    row: &'static str,
    reason: &'static str,
}

/// Every line of the table.
///
/// # Panics
/// A line that does not have six columns is a mistake of whoever wrote it.
pub(crate) fn table() -> Vec<Excuse> {
    let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let columns: Vec<&'static str> = line.split(" ; ").map(str::trim).collect();
            let [kind, nginx, tailwater, part, row, reason] = columns.as_slice() else {
                panic!("data/excused.txt: not six columns: {line}")
            };
            let [nginx, tailwater, part] =
                [nginx, tailwater, part].map(|text| if *text == "*" { "" } else { text });
            Excuse { kind, nginx, tailwater, part, row, reason }
        })
        .collect()
}

impl Excuse {
    /// Returns `true` if the table excuses this difference.
    pub(crate) fn applies(&self, difference: &Difference, case: &Case) -> bool {
        let in_case = || {
            node::render(&case.nodes).contains(self.part)
                || case
                    .exchanges
                    .get(difference.exchange)
                    .is_some_and(|exchange| exchange.bytes().contains(self.part))
        };
        difference.kind.starts_with(self.kind)
            && has(&difference.nginx, self.nginx)
            && has(&difference.tailwater, self.tailwater)
            && in_case()
    }

    /// Reason, with the row it stands for.
    pub(crate) fn explain(&self) -> String {
        format!("{} ({})", self.reason, self.row)
    }
}

/// Returns `true` if a value has the text of the table.
fn has(value: &str, text: &str) -> bool {
    if text == "\"\"" { value.is_empty() } else { value.contains(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_quotes_stand_for_an_empty_value() {
        for (value, text, expected) in
            [("", "\"\"", true), ("a", "\"\"", false), ("ab", "b", true), ("a", "", true)]
        {
            assert_eq!(has(value, text), expected, "{value} {text}");
        }
    }

    #[test]
    fn every_excuse_stands_for_a_row_of_the_document() {
        let document = include_str!("../../../docs/nginx-differences.md");
        for excuse in table() {
            assert!(document.contains(excuse.row), "{excuse:?}");
            assert!(!excuse.reason.is_empty(), "{excuse:?}");
        }
    }
}
