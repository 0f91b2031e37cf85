//! Fields of a head as slices of its buffer, with one slot for each known name.

use super::span::Span;
use crate::header_name::{HEADER_NAME_COUNT, HeaderName};

/// One field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldSpan {
    pub(crate) name: Span,
    pub(crate) value: Span,
    pub(crate) known: Option<HeaderName>,
}

/// All of them in order. Spans count from the first byte of the head, and every method is given the bytes from there.
#[derive(Debug)]
pub(crate) struct FieldList {
    spans: Vec<FieldSpan>,
    /// Index of the first field of a known name; valid where `present` has its bit.
    slots: [u32; HEADER_NAME_COUNT],
    present: u64,
}

impl FieldList {
    /// Makes an empty list; allocates nothing.
    pub(crate) const fn new() -> Self {
        FieldList { spans: Vec::new(), slots: [0; HEADER_NAME_COUNT], present: 0 }
    }

    /// Forgets all fields and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.spans.clear();
        self.present = 0;
    }

    /// Gives back the memory for more fields.
    pub(crate) fn shrink(&mut self) {
        self.spans.shrink_to_fit();
    }

    /// Becomes a copy of another list.
    pub(crate) fn copy(&mut self, of: &FieldList) {
        self.spans.clear();
        self.spans.extend_from_slice(&of.spans);
        self.slots = of.slots;
        self.present = of.present;
    }

    /// Keeps the fields for which `keep` is true, and lets it change them, but not their names.
    pub(crate) fn retain_mut(&mut self, keep: impl FnMut(&mut FieldSpan) -> bool) {
        self.spans.retain_mut(keep);
        self.present = 0;
        for (at, field) in (0..).zip(&self.spans) {
            let Some(name) = field.known.filter(|name| self.present & name.bit() == 0) else { continue };
            self.present |= name.bit();
            if let Some(slot) = self.slots.get_mut(name.slot()) {
                *slot = at;
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Adds a field at the end.
    #[inline]
    pub(crate) fn push(&mut self, field: FieldSpan) {
        if let Some(name) = field.known
            && !self.has(name)
        {
            self.present |= name.bit();
            if let Some(slot) = self.slots.get_mut(name.slot()) {
                *slot = u32::try_from(self.spans.len()).unwrap_or(u32::MAX);
            }
        }
        self.spans.push(field);
    }

    /// Returns `true` if a known name is present.
    #[inline]
    pub(crate) fn has(&self, name: HeaderName) -> bool {
        self.present & name.bit() != 0
    }

    /// The first field of a known name.
    #[inline]
    pub(crate) fn first(&self, name: HeaderName) -> Option<&FieldSpan> {
        if !self.has(name) {
            return None;
        }
        self.spans.get(*self.slots.get(name.slot())? as usize)
    }

    /// The last field.
    pub(crate) fn last_mut(&mut self) -> Option<&mut FieldSpan> {
        self.spans.last_mut()
    }

    /// Every field in order.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, FieldSpan> {
        self.spans.iter()
    }

    /// The fields of that name, in any case, in order.
    pub(crate) fn all<'s, 'n>(
        &'s self,
        bytes: &'s [u8],
        name: &'n [u8],
    ) -> impl DoubleEndedIterator<Item = &'s FieldSpan> + use<'s, 'n> {
        let known_name = HeaderName::find(name);
        self.spans.iter().filter(move |field| {
            field.known == known_name
                && (known_name.is_some() || field.name.of(bytes).eq_ignore_ascii_case(name))
        })
    }
}
