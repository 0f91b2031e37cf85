//! Choice of the rules of a phase that can match a value at all.
//!
//! Every rule that compares values with something fixed has a condition that follows from it: literals, bytes, a length. All literals of a phase
//! are looked for in one pass. Most values meet the conditions of no rule, and are done with. A rule runs only for the values that meet
//! its own; the result is that of all rules for all values.
//!
//! The conditions that a value meets depend on its bytes alone, so they are remembered ([`Memo`]): clients send most fields again and again.

mod literals;
mod memo;

use aho_corasick::AhoCorasick;

use self::literals::Condition;
pub(crate) use self::memo::LIMITS;
pub use self::memo::Memo;
use crate::operator::{Bytes, Operator, TextTest};
use crate::seclang::rule::Rule;
use crate::seclang::target::Use;
use crate::transform::{Transformation, Transformed};

/// Most different chains of transformations in one phase that are filtered. Rules with others always run.
const CHAINS_MAX: usize = 128;

/// Rule whose condition is known.
struct Entry {
    /// Position in its phase.
    rule: u32,
    /// Node of its chain of transformations.
    node: u16,
    sets: Box<[Bytes]>,
    length_min: usize,
}

/// Node of the tree of transformations: the value of its parent, transformed.
struct Node {
    parent: u16,
    transformation: Transformation,
}

/// Filter of a phase.
pub(crate) struct Filter {
    /// Literals of all rules.
    searcher: Option<AhoCorasick>,
    /// Entries of each literal.
    entries_of: Vec<Vec<u32>>,
    /// Entries without literals.
    free: Vec<u32>,
    entries: Vec<Entry>,
    /// Nodes but the root, which is the value itself. Parents come first.
    nodes: Vec<Node>,
    /// Variables of each rule that has an entry, by its position; 0 of others.
    variables: Vec<u128>,
}

/// Buffers of the filter, used again and again.
#[derive(Default)]
pub(crate) struct Scratch {
    values: Vec<Vec<u8>>,
    /// Different value of each node: 0 is the value itself, others are one more than their place in `values`.
    value_of: Vec<u16>,
    /// Entries that have passed.
    passed: Vec<bool>,
    buffer: Vec<u8>,
}

impl Filter {
    /// Filter of the rules of a phase, in their order.
    pub(crate) fn new<'a>(rules: impl Iterator<Item = &'a Rule>) -> Result<Self, String> {
        let mut filter = Self {
            searcher: None,
            entries_of: Vec::new(),
            free: Vec::new(),
            entries: Vec::new(),
            nodes: Vec::new(),
            variables: Vec::new(),
        };
        let mut literals: Vec<Vec<u8>> = Vec::new();
        let mut numbers = std::collections::HashMap::new();
        for (position, rule) in (0u32..).zip(rules) {
            filter.variables.push(0);
            let Some(condition) = condition(rule) else { continue };
            let Some(node) = filter.node(&rule.actions.transformations) else { continue };
            if let Some(variables) = filter.variables.last_mut() {
                *variables = rule.targets.included.iter().fold(0, |set, target| set | target.variable.bit());
            }
            let entry = filter.entries.len() as u32;
            let Condition { literals: own, sets, length_min } = condition;
            filter.entries.push(Entry { rule: position, node, sets: sets.into(), length_min });
            let Some(own) = own else {
                filter.free.push(entry);
                continue;
            };
            for literal in own {
                let number = *numbers.entry(literal.clone()).or_insert_with(|| {
                    literals.push(literal);
                    filter.entries_of.push(Vec::new());
                    literals.len() - 1
                });
                if let Some(entries) = filter.entries_of.get_mut(number)
                    && entries.last() != Some(&entry)
                {
                    entries.push(entry);
                }
            }
        }
        if !literals.is_empty() {
            let searcher = AhoCorasick::builder().ascii_case_insensitive(true).build(&literals);
            filter.searcher = Some(searcher.map_err(|error| error.to_string())?);
        }
        Ok(filter)
    }

    /// Node of a chain, which is made if there is none.
    fn node(&mut self, chain: &[Transformation]) -> Option<u16> {
        let mut parent = 0u16;
        for transformation in chain {
            let same = |node: &Node| node.parent == parent && node.transformation.name == transformation.name;
            parent = match self.nodes.iter().position(same) {
                Some(at) => at as u16 + 1,
                None if self.nodes.len() + 1 < CHAINS_MAX => {
                    self.nodes.push(Node { parent, transformation: *transformation });
                    self.nodes.len() as u16
                }
                None => return None,
            };
        }
        Some(parent)
    }

    /// Variables that the rule at this position of the phase reads, if it runs only for values that pass; 0 if it always runs.
    pub(crate) fn variables(&self, position: usize) -> u128 {
        self.variables.get(position).copied().unwrap_or(0)
    }

    /// Variables whose values are filtered.
    pub(crate) fn all_variables(&self) -> u128 {
        self.variables.iter().fold(0, |all, set| all | set)
    }

    /// Adds the positions of the rules that can match `value`, in order.
    pub(crate) fn find(&self, value: &[u8], scratch: &mut Scratch, results: &mut Vec<u32>) {
        self.transform(value, scratch);
        scratch.passed.clear();
        scratch.passed.resize(self.entries.len(), false);
        let Scratch { values, value_of, passed, .. } = scratch;
        let all = std::iter::once(value).chain(values.iter().map(Vec::as_slice));
        for (number, text) in (0u16..).zip(all) {
            if number > 0 && !value_of.contains(&number) {
                continue;
            }
            let bytes = Bytes::of(text);
            let mut check = |entry: &u32| {
                let Some(passed) = passed.get_mut(*entry as usize).filter(|passed| !**passed) else { return };
                let Some(known_entry) = self.entries.get(*entry as usize) else { return };
                let of_node = value_of.get(usize::from(known_entry.node)).copied();
                *passed = of_node == Some(number)
                    && text.len() >= known_entry.length_min
                    && known_entry.sets.iter().all(|set| set.meets(&bytes));
            };
            self.free.iter().for_each(&mut check);
            if let Some(searcher) = &self.searcher {
                for match_ in searcher.find_overlapping_iter(text) {
                    self.entries_of
                        .get(match_.pattern().as_usize())
                        .into_iter()
                        .flatten()
                        .for_each(&mut check);
                }
            }
        }
        let begin = results.len();
        results.extend(
            self.entries
                .iter()
                .zip(passed.iter())
                .filter(|(_, passed)| **passed)
                .map(|(entry, _)| entry.rule),
        );
        if let Some(new) = results.get_mut(begin..) {
            new.sort_unstable();
        }
    }

    /// Computes the value of each node, and which of them are the same.
    fn transform(&self, value: &[u8], scratch: &mut Scratch) {
        let Scratch { values, value_of, buffer, .. } = scratch;
        value_of.clear();
        value_of.push(0);
        let mut count = 0;
        for node in &self.nodes {
            let parent = value_of.get(usize::from(node.parent)).copied().unwrap_or(0);
            let input = match parent.checked_sub(1) {
                None => value,
                Some(at) => values.get(usize::from(at)).map_or(value, Vec::as_slice),
            };
            let number = match node.transformation.apply(input, buffer) {
                Transformed::Same => parent,
                Transformed::Changed if buffer == value => 0,
                Transformed::Changed => {
                    match values.iter().take(count).position(|candidate| candidate == buffer) {
                        Some(at) => at as u16 + 1,
                        None => {
                            match values.get_mut(count) {
                                Some(place) => std::mem::swap(place, buffer),
                                None => values.push(std::mem::take(buffer)),
                            }
                            count += 1;
                            count as u16
                        }
                    }
                }
            };
            value_of.push(number);
        }
        values.truncate(count);
    }
}

/// Condition of a rule that compares fixed values, or `None` if it always has to run.
fn condition(rule: &Rule) -> Option<Condition> {
    let is_plain = |target: &crate::seclang::target::Target| {
        target.used == Use::Values && !target.variable.is_volatile()
    };
    if rule.test.is_negated || rule.actions.multi_match || rule.targets.included.is_empty() {
        return None;
    }
    if !rule.targets.included.iter().all(is_plain) {
        return None;
    }
    let of_set = |set: Bytes| Condition { literals: None, sets: vec![set], length_min: 1 };
    Some(match &rule.test.operator {
        Operator::Rx(_, hir) | Operator::RxGlobal(_, hir) => Condition::of_regex(hir),
        Operator::Phrases(phrases) => Condition::of_texts(phrases.list().iter().map(Vec::as_slice)),
        Operator::Text(test, parameter) if *test != TextTest::Within => {
            Condition::of_texts(std::iter::once(&**parameter.fixed()?))
        }
        Operator::ByteRange(set) => of_set(set.complement()),
        Operator::UrlEncoding => of_set(one_byte(b'%')),
        Operator::Utf8Encoding => {
            let mut set = Bytes::default();
            (0x80..=u8::MAX).for_each(|byte| set.add(byte));
            of_set(set)
        }
        Operator::Sqli | Operator::Xss => Condition { literals: None, sets: Vec::new(), length_min: 1 },
        _ => return None,
    })
}

fn one_byte(byte: u8) -> Bytes {
    let mut set = Bytes::default();
    set.add(byte);
    set
}
