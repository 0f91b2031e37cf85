//! Conditions that every match of a regular expression meets: literals, one of which it contains; sets of bytes, of each of which it
//! contains one; a length.

use regex_syntax::hir::{Class, Hir, HirKind};

use crate::operator::Bytes;

/// Most literals of one expression. Longer lists find less, and cost more.
const LITERALS_MAX: usize = 256;
/// Most texts that a part of an expression is spelled out into.
const EXACT_MAX: usize = 48;
/// Longest text that is spelled out.
const LENGTH_MAX: usize = 24;
/// Shortest literal that is of use.
const LENGTH_MIN: usize = 2;
/// Most sets of bytes of one expression.
const SETS_MAX: usize = 5;

/// Condition of an expression.
#[derive(Debug, Clone, Default)]
pub(super) struct Condition {
    /// Literals in lower case, one of which is in every match. None if there are no such literals.
    pub(super) literals: Option<Vec<Vec<u8>>>,
    /// Sets, of each of which a byte is in every match.
    pub(super) sets: Vec<Bytes>,
    /// Bytes of the shortest match.
    pub(super) length_min: usize,
}

impl Condition {
    /// Condition of a regular expression.
    pub(super) fn of_regex(hir: &Hir) -> Self {
        let form = form(hir);
        let literals = form.best().filter(|list| is_useful(list));
        Self { literals, sets: rarest(sets(hir)), length_min: hir.properties().minimum_len().unwrap_or(0) }
    }

    /// Condition of texts, one of which is in every match.
    pub(super) fn of_texts<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Self {
        let list: Vec<Vec<u8>> = texts.map(<[u8]>::to_ascii_lowercase).collect();
        let length_min = list.iter().map(Vec::len).min().unwrap_or(0);
        if length_min >= LENGTH_MIN {
            return Self { literals: Some(list), sets: Vec::new(), length_min };
        }
        let mut set = Bytes::default();
        for byte in list.iter().filter_map(|text| text.first()) {
            set.add(*byte);
            set.add(byte.to_ascii_uppercase());
        }
        let sets = if length_min > 0 { vec![set] } else { Vec::new() };
        Self { literals: None, sets, length_min }
    }
}

/// Texts of a part of an expression.
struct Form {
    /// All texts that it matches, in lower case.
    exact: Option<Vec<Vec<u8>>>,
    /// Texts, one of which is in everything that it matches.
    required: Option<Vec<Vec<u8>>>,
}

impl Form {
    fn unknown() -> Self {
        Self { exact: None, required: None }
    }

    fn empty() -> Self {
        Self { exact: Some(vec![Vec::new()]), required: None }
    }

    /// The better one of both lists.
    fn best(self) -> Option<Vec<Vec<u8>>> {
        better(self.exact.filter(|list| !list.is_empty()), self.required)
    }
}

fn is_useful(list: &[Vec<u8>]) -> bool {
    list.len() <= LITERALS_MAX && list.iter().all(|text| text.len() >= LENGTH_MIN)
}

/// Value of a list: long texts first, then few.
fn worth(list: &[Vec<u8>]) -> (usize, usize) {
    let shortest = list.iter().map(Vec::len).min().unwrap_or(0);
    (shortest.min(5), usize::MAX - list.len())
}

fn better(one: Option<Vec<Vec<u8>>>, two: Option<Vec<Vec<u8>>>) -> Option<Vec<Vec<u8>>> {
    match (one, two) {
        (Some(one), Some(two)) => Some(if worth(&one) >= worth(&two) { one } else { two }),
        (one, two) => one.or(two),
    }
}

fn form(hir: &Hir) -> Form {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Form::empty(),
        HirKind::Literal(literal) => {
            Form { exact: Some(vec![literal.0.to_ascii_lowercase()]), required: None }
        }
        HirKind::Class(class) => match small_class(class) {
            Some(list) => Form { exact: Some(list), required: None },
            None => Form::unknown(),
        },
        HirKind::Capture(capture) => form(&capture.sub),
        HirKind::Repetition(repetition) => {
            let sub = form(&repetition.sub);
            match (repetition.min, repetition.max) {
                (0, Some(1)) => match sub.exact {
                    Some(mut list) if list.len() < 8 => {
                        list.push(Vec::new());
                        Form { exact: Some(list), required: None }
                    }
                    _ => Form::unknown(),
                },
                (0, _) => Form::unknown(),
                (1, Some(1)) => sub,
                _ => Form { exact: None, required: sub.best() },
            }
        }
        HirKind::Concat(parts) => concat(parts),
        HirKind::Alternation(parts) => alternation(parts),
    }
}

fn small_class(class: &Class) -> Option<Vec<Vec<u8>>> {
    let mut list: Vec<Vec<u8>> = Vec::new();
    for byte in bytes_of(class)? {
        let text = vec![byte.to_ascii_lowercase()];
        if !list.contains(&text) {
            list.push(text);
        }
        if list.len() > 4 {
            return None;
        }
    }
    Some(list)
}

fn bytes_of(class: &Class) -> Option<impl Iterator<Item = u8> + '_> {
    match class {
        Class::Bytes(class) => Some(class.iter().flat_map(|range| range.start()..=range.end())),
        Class::Unicode(_) => None,
    }
}

fn concat(parts: &[Hir]) -> Form {
    let mut exact = vec![Vec::new()];
    let mut required = None;
    let mut is_exact = true;
    for part in parts {
        let form = form(part);
        match form.exact {
            Some(list)
                if exact.len() * list.len() <= EXACT_MAX
                    && exact.iter().chain(&list).all(|text| text.len() <= LENGTH_MAX) =>
            {
                exact = exact
                    .iter()
                    .flat_map(|begin| list.iter().map(move |end| [&**begin, end].concat()))
                    .collect();
            }
            list => {
                is_exact = false;
                required = better(required, Some(std::mem::replace(&mut exact, vec![Vec::new()])));
                match list {
                    Some(list) => exact = list,
                    None => required = better(required, form.required),
                }
            }
        }
    }
    if is_exact {
        return Form { exact: Some(exact), required: None };
    }
    Form { exact: None, required: better(required, Some(exact)) }
}

fn alternation(parts: &[Hir]) -> Form {
    let forms: Vec<Form> = parts.iter().map(form).collect();
    let count: usize = forms.iter().map(|form| form.exact.as_ref().map_or(usize::MAX / 1024, Vec::len)).sum();
    if count <= LITERALS_MAX {
        let mut list: Vec<Vec<u8>> = forms.into_iter().filter_map(|form| form.exact).flatten().collect();
        list.sort_unstable();
        list.dedup();
        return Form { exact: Some(list), required: None };
    }
    let mut all = Vec::new();
    for form in forms {
        match form.best() {
            Some(list) if all.len() + list.len() <= LITERALS_MAX * 4 => all.extend(list),
            _ => return Form::unknown(),
        }
    }
    all.sort_unstable();
    all.dedup();
    Form { exact: None, required: Some(all) }
}

/// Sets, of each of which a byte is in everything that the expression matches.
fn sets(hir: &Hir) -> Vec<Bytes> {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Vec::new(),
        HirKind::Literal(literal) => {
            let single = |byte: &u8| {
                let mut set = Bytes::default();
                set.add(*byte);
                set
            };
            literal.0.iter().map(single).collect()
        }
        HirKind::Class(class) => {
            let mut set = Bytes::default();
            let Some(bytes) = bytes_of(class) else { return Vec::new() };
            bytes.for_each(|byte| set.add(byte));
            vec![set]
        }
        HirKind::Capture(capture) => sets(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => sets(&repetition.sub),
        HirKind::Repetition(_) => Vec::new(),
        HirKind::Concat(parts) => rarest(parts.iter().flat_map(sets).collect()),
        HirKind::Alternation(parts) => {
            let mut union = Bytes::default();
            for part in parts {
                match rarest(sets(part)).first() {
                    Some(set) => union = union.union(set),
                    None => return Vec::new(),
                }
            }
            vec![union]
        }
    }
}

/// The sets whose bytes are the rarest in ordinary values.
fn rarest(mut sets: Vec<Bytes>) -> Vec<Bytes> {
    sets.retain(|set| set.len() < 200);
    sets.sort_by_key(weight);
    sets.dedup();
    sets.truncate(SETS_MAX);
    sets
}

/// Frequency of the bytes of a set in ordinary values, about.
fn weight(set: &Bytes) -> u32 {
    let of = |byte: u8| match byte {
        b'e' | b'a' | b'o' | b't' | b'i' | b'n' | b's' | b'r' => 12,
        b'a'..=b'z' => 7,
        b'0'..=b'9' | b'A'..=b'Z' => 4,
        b'/' | b'.' | b'-' | b' ' | b'=' | b'_' => 5,
        b',' | b';' | b':' | b'(' | b')' | b'+' | b'&' | b'*' | b'"' | b'%' => 3,
        _ => 1,
    };
    (0..=u8::MAX).filter(|byte| set.has(*byte)).map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seclang::pattern;

    #[test]
    fn literals_are_found() {
        let cases: &[(&str, Option<&[&str]>)] = &[
            ("abc", Some(&["abc"])),
            ("(?i)union\\s+select", Some(&["union"])),
            ("a(?:bc|de)f", Some(&["abcf", "adef"])),
            ("x*y", None),
            ("[a-z]+://", Some(&["://"])),
            ("(?:foo|[0-9]+)", None),
            ("(?:foo.*|ba[rz])x", Some(&["bar", "baz", "foo"])),
        ];
        for (pattern, expected) in cases {
            let (_, hir) = pattern::compile(pattern.as_bytes()).unwrap();
            let results = Condition::of_regex(&hir).literals;
            let expected =
                expected.map(|list| list.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>());
            assert_eq!(results, expected, "{pattern}");
        }
    }
}
