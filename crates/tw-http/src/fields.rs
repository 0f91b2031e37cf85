//! Owned header fields: order and letter case are kept, because both survive a proxy.
//!
//! Names and values are static, shared (`Bytes`) or copied into one text buffer of the list, so a list that is
//! cleared and filled again allocates nothing once it is warm. A bit per known name answers "is it present" without a
//! search; everything else is a linear search over a handful of entries.

use std::cell::RefCell;
use std::mem;

use bytes::Bytes;

use crate::head::Span;
use crate::head::field_list::FieldSpan;
use crate::header_name::HeaderName;
use crate::scan;

tw_base::limits! {
    /// The limits kept here.
    pub(crate) const LIMITS;

    /// Lists of header fields whose memory a loop keeps for the next ones.
    const RELEASED_MAX: usize = 8, count, "what is more is freed";
    /// Fields of a list whose memory is kept.
    const RELEASED_FIELDS_MAX: usize = 64, count, "that of a longer list is freed";
    /// Bytes of names and values of a list whose memory is kept.
    const RELEASED_TEXT_MAX: usize = 4 << 10, bytes, "that of a longer list is freed";
}

thread_local! {
    /// Memory of released lists. A list is taken by whoever released one last: requests that wait have none, and those that are
    /// answered use the same few pieces of memory, which stay in the caches of the processor.
    static RELEASED: RefCell<Vec<(Vec<Entry>, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
}

/// Returns `true` if this can be the name of a field: a token (RFC 9110 section 5.6.2).
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|&byte| scan::is_token(byte))
}

/// Storage of a name or a value.
#[derive(Clone, Debug)]
enum Piece {
    Static(&'static [u8]),
    Shared(Bytes),
    /// Offset and length in `Fields::text`.
    Text(u32, u32),
}

#[derive(Clone, Debug)]
struct Entry {
    name: Piece,
    value: Piece,
    known: Option<HeaderName>,
}

/// A field name on its way into [`Fields`].
#[derive(Clone, Debug)]
pub enum Name<'a> {
    /// Known name, written in its usual case.
    HeaderName(HeaderName),
    /// A name in static memory.
    Static(&'static str),
    /// A name someone else owns too.
    Shared(Bytes),
    /// A name to copy.
    Copy(&'a [u8]),
    /// Name to copy, with the result of [`HeaderName::find`].
    CopyKnown(&'a [u8], Option<HeaderName>),
}

/// A field value on its way into [`Fields`].
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// A value in static memory.
    Static(&'static [u8]),
    /// A value someone else owns too.
    Shared(Bytes),
    /// A value to copy.
    Copy(&'a [u8]),
}

impl From<HeaderName> for Name<'_> {
    fn from(name: HeaderName) -> Self {
        Name::HeaderName(name)
    }
}

impl From<&'static str> for Name<'_> {
    fn from(name: &'static str) -> Self {
        Name::Static(name)
    }
}

impl From<Bytes> for Name<'_> {
    fn from(name: Bytes) -> Self {
        Name::Shared(name)
    }
}

impl From<&'static str> for Value<'_> {
    fn from(value: &'static str) -> Self {
        Value::Static(value.as_bytes())
    }
}

impl From<Bytes> for Value<'_> {
    fn from(value: Bytes) -> Self {
        Value::Shared(value)
    }
}

/// An ordered list of header fields.
#[derive(Debug, Default)]
pub struct Fields {
    entries: Vec<Entry>,
    text: Vec<u8>,
    present: u64,
}

impl Clone for Fields {
    /// Allocates no more than the copy needs, because it may be kept for long.
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone(), text: self.text.clone(), present: self.present }
    }

    /// Uses the memory that is there, or was released.
    fn clone_from(&mut self, source: &Self) {
        self.clear();
        if !source.is_empty() {
            self.prepare();
            self.entries.extend_from_slice(&source.entries);
            self.text.extend_from_slice(&source.text);
            self.present = source.present;
        }
    }
}

impl Fields {
    /// Makes an empty list; allocates nothing.
    pub const fn new() -> Self {
        Fields { entries: Vec::new(), text: Vec::new(), present: 0 }
    }

    /// Gives back the memory that no field uses.
    pub fn shrink(&mut self) {
        self.entries.shrink_to_fit();
        self.text.shrink_to_fit();
    }

    /// Forgets all fields and keeps the memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.text.clear();
        self.present = 0;
    }

    /// Forgets all fields, and leaves the memory to the next list of this thread that gets a field.
    pub fn release(&mut self) {
        self.clear();
        let fields = self.entries.capacity();
        let text = self.text.capacity();
        if fields == 0 || fields > RELEASED_FIELDS_MAX || text > RELEASED_TEXT_MAX {
            *self = Self::new();
            return;
        }
        let memory = (mem::take(&mut self.entries), mem::take(&mut self.text));
        // A thread that ends frees it.
        let _ = RELEASED.try_with(|released| {
            let mut released = released.borrow_mut();
            if released.len() < RELEASED_MAX {
                released.push(memory);
            }
        });
    }

    /// Takes memory that was released before the first field is added.
    #[inline]
    fn prepare(&mut self) {
        if self.entries.capacity() == 0 {
            self.take_released();
        }
    }

    fn take_released(&mut self) {
        let released = RELEASED.try_with(|released| released.borrow_mut().pop());
        if let Ok(Some((entries, text))) = released {
            self.entries = entries;
            if self.text.capacity() == 0 {
                self.text = text;
            }
        }
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if there is no field.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a field at the end, even if one of that name exists.
    pub fn append<'a>(&mut self, name: impl Into<Name<'a>>, value: impl Into<Value<'a>>) {
        self.prepare();
        let (name, known_name) = self.name_piece(name.into());
        let value = self.value_piece(value.into());
        self.entries.push(Entry { name, value, known: known_name });
        self.present |= known_name.map_or(0, HeaderName::bit);
    }

    /// Adds a field at the end, copying the value into the list's own text.
    pub fn append_copy<'a>(&mut self, name: impl Into<Name<'a>>, value: &'a [u8]) {
        self.append(name, Value::Copy(value));
    }

    /// Adds field number `index` of `other` at the end. Costs one copy of its text.
    pub fn append_from(&mut self, other: &Self, index: usize) {
        let Some(entry) = other.entries.get(index) else { return };
        self.prepare();
        let (name, value) = match (&entry.name, &entry.value) {
            // In a parsed head, the name stands right before the value.
            (&Piece::Text(name, name_len), &Piece::Text(value, value_len)) if name <= value => {
                let end = value.saturating_add(value_len);
                let both = other.text.get(name as usize..end as usize).unwrap_or_default();
                match self.copy(both) {
                    Piece::Text(start, _) => (
                        Piece::Text(start, name_len),
                        Piece::Text(start.saturating_add(value - name), value_len),
                    ),
                    _ => return self.append_copy(Name::Copy(other.name_of(entry)), other.value_of(entry)),
                }
            }
            (name, value) => (self.piece_from(other, name), self.piece_from(other, value)),
        };
        self.entries.push(Entry { name, value, known: entry.known });
        self.present |= entry.known.map_or(0, HeaderName::bit);
    }

    /// Replaces all fields by those of a head. The text of the head is copied once, however many fields it has.
    pub(crate) fn set_head<'h>(&mut self, text: &[u8], fields: impl ExactSizeIterator<Item = &'h FieldSpan>) {
        self.clear();
        self.prepare();
        self.text.extend_from_slice(text);
        self.entries.reserve(fields.len());
        for field in fields {
            let piece = |span: Span| Piece::Text(span.start() as u32, (span.end() - span.start()) as u32);
            self.entries.push(Entry {
                name: piece(field.name),
                value: piece(field.value),
                known: field.known,
            });
            self.present |= field.known.map_or(0, HeaderName::bit);
        }
    }

    /// Replaces the first field of that name and removes the others; adds it at the end if there is none.
    pub fn set<'a>(&mut self, name: impl Into<Name<'a>>, value: impl Into<Value<'a>>) {
        self.prepare();
        let (name, known_name) = self.name_piece(name.into());
        let value = self.value_piece(value.into());
        let text = &self.text;
        let wanted_value = bytes_of(text, &name);
        let mut fresh = Some(value);
        self.entries.retain_mut(|entry| {
            if entry.known != known_name || !bytes_of(text, &entry.name).eq_ignore_ascii_case(wanted_value) {
                return true;
            }
            fresh.take().map(|value| entry.value = value).is_some()
        });
        if let Some(value) = fresh {
            self.entries.push(Entry { name, value, known: known_name });
            self.present |= known_name.map_or(0, HeaderName::bit);
        }
    }

    /// Removes every field of that name; returns `true` if there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let known_name = HeaderName::find(name);
        if known_name.is_some_and(|known_name| !self.has(known_name)) {
            return false;
        }
        let before = self.entries.len();
        let text = &self.text;
        self.entries.retain(|entry| {
            entry.known != known_name || !bytes_of(text, &entry.name).eq_ignore_ascii_case(name)
        });
        self.present &= !known_name.map_or(0, HeaderName::bit);
        self.entries.len() != before
    }

    /// Removes every field of a known name; returns `true` if there was one.
    pub fn remove_known(&mut self, name: HeaderName) -> bool {
        self.remove(name.as_str().as_bytes())
    }

    /// Keeps the fields for which `keep` is true. It gets each name with the result of [`HeaderName::find`] for it.
    pub fn retain(&mut self, mut keep: impl FnMut(&[u8], Option<HeaderName>) -> bool) {
        let text = &self.text;
        let mut present = 0;
        self.entries.retain(|entry| {
            let stays = keep(bytes_of(text, &entry.name), entry.known);
            present |= if stays { entry.known.map_or(0, HeaderName::bit) } else { 0 };
            stays
        });
        self.present = present;
    }

    /// Keeps the first `len` fields.
    pub fn truncate(&mut self, len: usize) {
        self.entries.truncate(len);
        self.present =
            self.entries.iter().fold(0, |present, entry| present | entry.known.map_or(0, HeaderName::bit));
    }

    /// Returns `true` if a known name is present. Cost: one bit test.
    #[inline]
    pub fn has(&self, name: HeaderName) -> bool {
        self.present & name.bit() != 0
    }

    /// The first value of that name, in any case.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    /// The first value of a known name.
    pub fn get_known(&self, name: HeaderName) -> Option<&[u8]> {
        if !self.has(name) {
            return None;
        }
        let entry = self.entries.iter().find(|entry| entry.known == Some(name))?;
        Some(bytes_of(&self.text, &entry.value))
    }

    /// The values of every field of that name, in order.
    pub fn get_all<'s, 'n>(&'s self, name: &'n [u8]) -> impl Iterator<Item = &'s [u8]> + use<'s, 'n> {
        let known_name = HeaderName::find(name);
        self.entries
            .iter()
            .filter(move |entry| {
                entry.known == known_name && bytes_of(&self.text, &entry.name).eq_ignore_ascii_case(name)
            })
            .map(|entry| bytes_of(&self.text, &entry.value))
    }

    /// Every field in order: name as written, value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.entries
            .iter()
            .map(|entry| (bytes_of(&self.text, &entry.name), bytes_of(&self.text, &entry.value)))
    }

    /// Fields with the result of [`HeaderName::find`] for each name.
    pub fn iter_known(&self) -> impl Iterator<Item = (&[u8], Option<HeaderName>, &[u8])> {
        self.entries
            .iter()
            .map(|entry| (bytes_of(&self.text, &entry.name), entry.known, bytes_of(&self.text, &entry.value)))
    }

    /// A shared handle to the first value of that name: free for static and shared values, a copy for copied ones.
    pub fn share(&self, name: &[u8]) -> Option<Bytes> {
        let known_name = HeaderName::find(name);
        let entry = self.entries.iter().find(|entry| {
            entry.known == known_name && bytes_of(&self.text, &entry.name).eq_ignore_ascii_case(name)
        })?;
        Some(match &entry.value {
            Piece::Static(bytes) => Bytes::from_static(bytes),
            Piece::Shared(bytes) => bytes.clone(),
            Piece::Text(..) => Bytes::copy_from_slice(bytes_of(&self.text, &entry.value)),
        })
    }

    fn name_piece(&mut self, name: Name<'_>) -> (Piece, Option<HeaderName>) {
        match name {
            Name::HeaderName(known_name) => (Piece::Static(known_name.as_str().as_bytes()), Some(known_name)),
            Name::Static(name) => (Piece::Static(name.as_bytes()), HeaderName::find(name.as_bytes())),
            Name::Shared(name) => {
                let known_name = HeaderName::find(&name);
                (Piece::Shared(name), known_name)
            }
            Name::Copy(name) => (self.copy(name), HeaderName::find(name)),
            Name::CopyKnown(name, known_name) => {
                debug_assert_eq!(known_name, HeaderName::find(name));
                (self.copy(name), known_name)
            }
        }
    }

    #[inline]
    fn value_piece(&mut self, value: Value<'_>) -> Piece {
        match value {
            Value::Static(value) => Piece::Static(value),
            Value::Shared(value) => Piece::Shared(value),
            Value::Copy(value) => self.copy(value),
        }
    }

    fn name_of<'s>(&'s self, entry: &'s Entry) -> &'s [u8] {
        bytes_of(&self.text, &entry.name)
    }

    fn value_of<'s>(&'s self, entry: &'s Entry) -> &'s [u8] {
        bytes_of(&self.text, &entry.value)
    }

    fn piece_from(&mut self, other: &Self, piece: &Piece) -> Piece {
        match piece {
            Piece::Text(..) => self.copy(bytes_of(&other.text, piece)),
            Piece::Static(_) | Piece::Shared(_) => piece.clone(),
        }
    }

    fn copy(&mut self, bytes: &[u8]) -> Piece {
        let (Ok(start), Ok(len)) = (u32::try_from(self.text.len()), u32::try_from(bytes.len())) else {
            return Piece::Shared(Bytes::copy_from_slice(bytes));
        };
        self.text.extend_from_slice(bytes);
        Piece::Text(start, len)
    }
}

#[inline]
fn bytes_of<'a>(text: &'a [u8], piece: &'a Piece) -> &'a [u8] {
    match piece {
        Piece::Static(bytes) => bytes,
        Piece::Shared(bytes) => bytes,
        Piece::Text(start, len) => {
            text.get(*start as usize..).and_then(|tail| tail.get(..*len as usize)).unwrap_or(b"")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(fields: &Fields) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        fields.iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn shrinking_keeps_fields() {
        let mut fields = Fields::new();
        for name in ["A", "B", "C", "D", "E"] {
            fields.append(Name::Copy(name.as_bytes()), Bytes::from_static(b"1"));
        }
        let before = listed(&fields);
        fields.shrink();
        assert_eq!(listed(&fields), before);
        assert_eq!((fields.entries.capacity(), fields.text.capacity()), (5, fields.text.len()));
    }

    #[test]
    fn released_memory_serves_the_next_list() {
        let mut first = Fields::new();
        first.append_copy(Name::Copy(b"A"), b"1");
        let memory = first.entries.as_ptr();
        first.release();
        assert!(first.is_empty() && !first.has(HeaderName::Server) && first.entries.capacity() == 0);
        let mut second = Fields::new();
        second.append_copy(Name::Copy(b"B"), b"2");
        assert_eq!((second.entries.as_ptr(), listed(&second)), (memory, pairs(&[("B", "2")])));
        // The first one has other memory by now.
        first.append_copy(Name::Copy(b"C"), b"3");
        assert_eq!((listed(&first), listed(&second)), (pairs(&[("C", "3")]), pairs(&[("B", "2")])));
        let mut many = Fields::new();
        (0..=RELEASED_FIELDS_MAX).for_each(|_| many.append("A", "1"));
        many.release();
        assert_eq!(RELEASED.with_borrow(Vec::len), 0, "too much to be kept");
    }

    #[test]
    fn copies_use_memory_that_is_there() {
        let mut first = Fields::new();
        first.append_copy(Name::Copy(b"A"), b"1");
        first.append(HeaderName::Server, "origin");
        let mut second = first.clone();
        let mut spare = Fields::new();
        assert_eq!((listed(&second), second.has(HeaderName::Server)), (listed(&first), true));
        spare.append_copy(Name::Copy(b"B"), b"2");
        let memory = spare.entries.as_ptr();
        spare.release();
        assert_ne!(second.clone().entries.as_ptr(), memory, "a copy that may be kept has its own");
        let mut third = Fields::new();
        third.clone_from(&second);
        assert_eq!((third.entries.as_ptr(), listed(&third)), (memory, listed(&first)));
        let memory = second.entries.as_ptr();
        second.clone_from(&Fields::new());
        assert!(second.is_empty() && !second.has(HeaderName::Server));
        second.clone_from(&third);
        assert_eq!((second.entries.as_ptr(), listed(&second)), (memory, listed(&first)));
    }

    #[test]
    fn order_and_case_are_kept() {
        let mut fields = Fields::new();
        fields.append("X-b", "1");
        fields.append_copy(Name::Copy(b"sErVeR"), b"origin");
        fields.append(HeaderName::ETag, Bytes::from_static(b"\"v\""));
        fields.append("x-B", "2");
        let all = pairs(&[("X-b", "1"), ("sErVeR", "origin"), ("ETag", "\"v\""), ("x-B", "2")]);
        assert_eq!(listed(&fields), all);
        assert!(
            fields.has(HeaderName::Server) && fields.has(HeaderName::ETag) && !fields.has(HeaderName::Date)
        );
        assert_eq!(fields.get(b"X-B"), Some(&b"1"[..]));
        assert_eq!(fields.get_all(b"x-b").collect::<Vec<_>>(), [b"1", b"2"]);
        assert_eq!(fields.get_known(HeaderName::Server), Some(&b"origin"[..]));
    }

    #[test]
    fn set_replaces_the_first_and_removes_the_rest() {
        let mut fields = Fields::new();
        for (name, value) in [("A", "1"), ("B", "2"), ("a", "3"), ("C", "4")] {
            fields.append(name, value);
        }
        fields.set("a", "9");
        assert_eq!(listed(&fields), pairs(&[("A", "9"), ("B", "2"), ("C", "4")]));
        fields.set(HeaderName::Vary, "Accept");
        fields.set(HeaderName::Vary, "Cookie");
        assert_eq!(fields.get_known(HeaderName::Vary), Some(&b"Cookie"[..]));
        assert_eq!(fields.len(), 4);
    }

    #[test]
    fn fields_of_another_list_are_appended() {
        let mut other = Fields::new();
        other.append_copy(Name::Copy(b"x-A"), b"copied");
        other.append(HeaderName::ETag, Bytes::from_static(b"\"v\""));
        other.append("X-Static", "1");
        other.append_copy(HeaderName::Server, b"s");
        other.set("x-a", Value::Copy(b"set later"));
        let mut fields = Fields::new();
        fields.append_copy(Name::Copy(b"First"), b"text before");
        (0..=other.len()).for_each(|index| fields.append_from(&other, index));
        let expected = [
            ("First", "text before"),
            ("x-A", "set later"),
            ("ETag", "\"v\""),
            ("X-Static", "1"),
            ("Server", "s"),
        ];
        assert_eq!(listed(&fields), pairs(&expected));
        assert!(fields.has(HeaderName::ETag) && fields.has(HeaderName::Server));
        let first = Fields::new();
        let second = fields;
        let mut copy = first;
        (0..second.len()).for_each(|index| copy.append_from(&second, index));
        assert_eq!(listed(&copy), listed(&second));
    }

    #[test]
    fn remove_retain_clear() {
        let mut fields = Fields::new();
        fields.append(HeaderName::Server, "a");
        fields.append("X-1", "b");
        fields.append("SERVER", "c");
        assert!(fields.remove(b"server"));
        assert!(!fields.remove(b"server"));
        assert!(!fields.has(HeaderName::Server));
        assert_eq!(listed(&fields), pairs(&[("X-1", "b")]));
        fields.append(HeaderName::Age, "1");
        fields.retain(|name, _| name != b"Age");
        assert!(!fields.has(HeaderName::Age));
        fields.append(HeaderName::Age, "1");
        fields.append("X-2", "d");
        fields.truncate(1);
        assert!(!fields.has(HeaderName::Age));
        assert_eq!(listed(&fields), pairs(&[("X-1", "b")]));
        fields.clear();
        assert!(fields.is_empty());
    }

    #[test]
    fn sharing_costs_nothing_for_shared_values() {
        let mut fields = Fields::new();
        let value = Bytes::from(vec![b'v'; 40]);
        fields.append("X-1", value.clone());
        assert_eq!(fields.share(b"x-1").map(|shared| shared.as_ptr()), Some(value.as_ptr()));
        fields.append_copy("X-2", b"copied");
        assert_eq!(fields.share(b"x-2").as_deref(), Some(&b"copied"[..]));
        assert_eq!(fields.share(b"x-3"), None);
    }
}
