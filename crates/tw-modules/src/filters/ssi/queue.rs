//! Texts and includes of a page that were parsed and not yet sent. Includes begin early, in their order, as far as
//! [`EarlySubrequest`] permits.

use std::collections::VecDeque;
use std::task::Context;

use tw_phases::early_subrequest::EarlySubrequest;
use tw_phases::subrequest::{ParentBody, Refused};
use tw_request::request::{Request, Uri};

/// Bytes of texts and includes that are ready before more of the page is looked at.
pub(super) const QUEUE_MAX: usize = 64 << 10;
/// Cost of an include in the queue beside its URI.
const INCLUDE_COST: usize = 64;

/// A text or an include.
pub(super) enum Item {
    Text(Vec<u8>),
    Include(Include),
}

/// An include that waits for its turn.
pub(super) struct Include {
    pub(super) uri: Uri,
    /// Content that is shown instead of nothing.
    pub(super) stub: Option<Vec<u8>>,
    /// The variable that takes the response.
    pub(super) variable: Option<Vec<u8>>,
    /// The subrequest, once it has begun.
    pub(super) begun: Option<Result<EarlySubrequest, Refused>>,
}

/// Texts and includes in the order of the page.
#[derive(Default)]
pub(super) struct Queue {
    items: VecDeque<Item>,
    bytes: usize,
    /// Items at the front of which no include has yet to begin.
    begun: usize,
}

impl Include {
    /// Bytes it counts in the queue.
    fn cost(&self) -> usize {
        INCLUDE_COST + self.uri.path.len() + self.uri.args.len() + self.stub.as_ref().map_or(0, Vec::len)
    }
}

impl Item {
    fn cost(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Include(include) => include.cost(),
        }
    }
}

impl Queue {
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= QUEUE_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Puts text at the end.
    pub(super) fn push_text(&mut self, text: &[u8]) {
        self.bytes += text.len();
        match self.items.back_mut() {
            Some(Item::Text(last)) => last.extend_from_slice(text),
            _ => self.items.push_back(Item::Text(text.to_vec())),
        }
    }

    /// Puts an include at the end.
    pub(super) fn push_include(&mut self, include: Include) {
        self.bytes += include.cost();
        self.items.push_back(Item::Include(include));
    }

    /// Puts text in front of everything.
    pub(super) fn push_front(&mut self, text: Vec<u8>) {
        self.bytes += text.len();
        self.begun += 1;
        self.items.push_front(Item::Text(text));
    }

    /// Takes the first item.
    pub(super) fn pop(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        self.bytes -= item.cost().min(self.bytes);
        self.begun = self.begun.saturating_sub(1);
        Some(item)
    }

    /// Begins includes as parts of `r`, as many as may run before their turn.
    pub(super) fn begin_early(&mut self, r: &mut Request) {
        while let Some(item) = self.items.get_mut(self.begun) {
            if let Item::Include(include) = item {
                let uri = || Uri { path: include.uri.path.clone(), args: include.uri.args.clone() };
                match EarlySubrequest::begin_early(r, uri, ParentBody::Visible) {
                    Some(begun) => include.begun = Some(begun),
                    None => break,
                }
            }
            self.begun += 1;
        }
    }

    /// Lets the includes that have begun go on.
    pub(super) fn run_ahead(&mut self, cx: &mut Context<'_>) {
        for item in self.items.iter_mut().take(self.begun) {
            if let Item::Include(Include { begun: Some(Ok(part)), .. }) = item {
                part.run_ahead(cx);
            }
        }
    }
}
