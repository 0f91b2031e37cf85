//! Values of the variables of a request: one buffer with all bytes, and lists of what is where in it.

use std::sync::Arc;

use super::{COMPUTED_MAX, VALUES_MAX};
use crate::operator::number;
use crate::variable::{VARIABLE_COUNT, Variable};

/// Part of the buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Span {
    begin: u32,
    end: u32,
}

/// Named value.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Item {
    pub(super) name: Span,
    pub(super) value: Span,
}

/// Value of `TX`.
#[derive(Debug, Clone)]
pub(super) enum TxValue {
    /// Number.
    Number(i64),
    /// Text of a rule.
    Fixed(Arc<[u8]>),
    /// Other text.
    Text(Vec<u8>),
}

impl TxValue {
    /// Number at the beginning of the text.
    pub(super) fn number(&self) -> i64 {
        match self {
            Self::Number(number) => *number,
            Self::Fixed(text) => number(text),
            Self::Text(text) => number(text),
        }
    }

    /// Appends the text.
    pub(super) fn push(&self, out: &mut Vec<u8>) {
        match self {
            Self::Number(number) => push_number(*number, out),
            Self::Fixed(text) => out.extend_from_slice(text),
            Self::Text(text) => out.extend_from_slice(text),
        }
    }
}

/// Appends a number in decimal digits.
pub(super) fn push_number(number: i64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        if let Some(digit) = digits.get_mut(at) {
            *digit = b'0' + (rest % 10) as u8;
        }
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(digits.get(at..).unwrap_or_default());
}

/// All values.
pub(super) struct Values {
    bytes: Vec<u8>,
    lists: Vec<Vec<Item>>,
    tx: Vec<Option<TxValue>>,
    /// Values of `TX` with names that no rule spells out.
    computed: Vec<(Box<[u8]>, TxValue)>,
}

impl Values {
    pub(super) fn new(tx_count: usize) -> Self {
        let mut lists = Vec::new();
        lists.resize_with(VARIABLE_COUNT, Vec::new);
        Self { bytes: Vec::new(), lists, tx: vec![None; tx_count], computed: Vec::new() }
    }

    /// Has this number of values of `TX` from now on.
    pub(super) fn resize(&mut self, tx_count: usize) {
        self.tx.clear();
        self.tx.resize(tx_count, None);
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.lists.iter_mut().for_each(Vec::clear);
        self.tx.iter_mut().for_each(|value| *value = None);
        self.computed.clear();
    }

    /// Bytes of all values.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Adds bytes. They are lost if there are more than 4 GiB.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Span {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        match (u32::try_from(begin), u32::try_from(self.bytes.len())) {
            (Ok(begin), Ok(end)) => Span { begin, end },
            _ => Span::default(),
        }
    }

    /// Adds what `write` appends.
    pub(super) fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Span {
        let begin = self.bytes.len();
        write(&mut self.bytes);
        match (u32::try_from(begin), u32::try_from(self.bytes.len())) {
            (Ok(begin), Ok(end)) => Span { begin, end },
            _ => Span::default(),
        }
    }

    /// Removes bytes that were added behind the first `length`.
    pub(super) fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
    }

    /// Bytes of a part.
    pub(super) fn get(&self, span: Span) -> &[u8] {
        self.bytes.get(span.begin as usize..span.end as usize).unwrap_or_default()
    }

    /// Values of a variable.
    pub(super) fn list(&self, variable: Variable) -> &[Item] {
        self.lists.get(variable as usize).map_or(&[], Vec::as_slice)
    }

    /// First value of a variable.
    pub(super) fn first(&self, variable: Variable) -> &[u8] {
        self.list(variable).first().map_or(&[], |item| self.get(item.value))
    }

    /// Sets the only value of a variable.
    pub(super) fn set(&mut self, variable: Variable, bytes: &[u8]) -> Span {
        let value = self.push(bytes);
        self.set_span(variable, value);
        value
    }

    /// Sets the only value of a variable to bytes that are there.
    pub(super) fn set_span(&mut self, variable: Variable, value: Span) {
        if let Some(list) = self.lists.get_mut(variable as usize) {
            list.clear();
            list.push(Item { name: Span::default(), value });
        }
    }

    /// Sets the only value of a variable to a number.
    pub(super) fn set_number(&mut self, variable: Variable, number: i64) {
        let value = self.push_with(|out| push_number(number, out));
        self.set_span(variable, value);
    }

    /// Adds a value to a collection. Returns false if the collection is full.
    pub(super) fn add(&mut self, variable: Variable, item: Item) -> bool {
        match self.lists.get_mut(variable as usize) {
            Some(list) if list.len() < VALUES_MAX => {
                list.push(item);
                true
            }
            _ => false,
        }
    }

    /// Value of `TX` by its number.
    pub(super) fn tx(&self, number: u16) -> Option<&TxValue> {
        self.tx.get(usize::from(number))?.as_ref()
    }

    /// Stores a value of `TX`.
    pub(super) fn set_tx(&mut self, number: u16, value: Option<TxValue>) {
        if let Some(place) = self.tx.get_mut(usize::from(number)) {
            *place = value;
        }
    }

    /// Value of `TX` with a name that no rule spells out.
    pub(super) fn computed(&self, name: &[u8]) -> Option<&TxValue> {
        self.computed
            .iter()
            .find(|(candidate, _)| candidate.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// Stores such a value.
    pub(super) fn set_computed(&mut self, name: &[u8], value: Option<TxValue>) {
        let place = self.computed.iter().position(|(candidate, _)| candidate.eq_ignore_ascii_case(name));
        match (place, value) {
            (Some(at), Some(value)) => {
                if let Some((_, place)) = self.computed.get_mut(at) {
                    *place = value;
                }
            }
            (Some(at), None) => {
                self.computed.remove(at);
            }
            (None, Some(value)) if self.computed.len() < COMPUTED_MAX => {
                self.computed.push((name.into(), value))
            }
            (None, _) => {}
        }
    }

    /// All values of `TX`: the number or the name of each.
    pub(super) fn all_tx(&self) -> impl Iterator<Item = (Result<u16, &[u8]>, &TxValue)> {
        let numbered =
            (0u16..).zip(&self.tx).filter_map(|(number, value)| Some((Ok(number), value.as_ref()?)));
        numbered.chain(self.computed.iter().map(|(name, value)| (Err(&**name), value)))
    }
}
