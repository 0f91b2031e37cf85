//! Interface of a session to protocol-independent modules: the client's address, text with variables, a log.
//!
//! `map`, `geo`, limits and access rules are written against this trait alone. A protocol implements the required
//! methods, and gets variables and regular expressions for free.

use std::cell::Cell;
use std::fmt;
use std::iter;
use std::ops::Range;
use std::rc::Rc;

use tw_log::Level;
use tw_net::Addr;

use crate::regex::{BacktrackLimit, Captures, Match, Regex};
use crate::vars::{Bindings, Computed, Slots, Value, bindings};

/// A client being served.
pub trait Session: Sized + 'static {
    /// True if proxies can name in it the client that they speak for, as in `X-Forwarded-For`.
    const TELLS_FORWARDED: bool = false;

    /// The client's address, as trusted proxies tell it.
    fn client_addr(&self) -> &Addr;

    /// Addresses that proxies name as their clients, each line a list; the nearest proxy last.
    fn forwarded(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        iter::empty()
    }

    /// Writes a line into the error log, with the client and the request.
    fn log(&self, level: Level, message: fmt::Arguments<'_>);

    /// The slots of the configuration it is served by.
    fn slots(&self) -> &Slots<Self>;

    /// Values of its variables.
    fn bindings(&self) -> &Bindings;

    /// Buffer for a short text: taken, and put back before the session is left.
    fn scratch(&self) -> &Cell<Vec<u8>>;

    /// Holds a value until the session is over. It replaces the value of the same type.
    fn hold<T: 'static>(&mut self, value: Rc<T>);

    /// Block-specific computation of a slot at the current position of the session, if there is one.
    fn block_computation(&self, _slot: u16) -> Option<&Computed<Self>> {
        None
    }

    /// Returns true if the use of a variable before `set` has given it a value is worth a warning.
    fn warns_of_uninitialized(&self) -> bool {
        true
    }

    /// Appends the value of a slot.
    fn slot(&self, slot: u16, out: &mut Vec<u8>) -> Value {
        bindings::slot(self, slot, out)
    }

    /// Appends the current value of a slot; `None` if it has none.
    fn stored(&self, slot: u16, out: &mut Vec<u8>) -> Option<Value> {
        self.bindings().read(slot, out)
    }

    /// Stores a value in a slot. It replaces one that is computed.
    fn set_slot(&mut self, slot: u16, value: impl AsRef<[u8]>) {
        self.bindings().store(slot, value.as_ref());
    }

    /// Matches `subject`; a match sets `$1` to `$9` and the variables of named groups. A pattern that runs into its limit
    /// of backtracking is logged, and ends the session with an error once the handler that asked is done.
    fn matches(&self, regex: &Regex, subject: &[u8]) -> Result<Match, BacktrackLimit> {
        bindings::matches(self, regex, subject)
    }

    /// Finds the next match from byte `from` of `subject` on, and sets variables as [`Session::matches`] does.
    fn match_from(
        &self,
        regex: &Regex,
        subject: &[u8],
        from: usize,
    ) -> Result<Option<Range<usize>>, BacktrackLimit> {
        bindings::match_from(self, regex, subject, from)
    }

    /// Stores the named groups of a regular expression that has just matched into the captures.
    fn store_named_captures(&self, regex: &Regex) {
        self.store_named(regex, &self.bindings().captures.borrow());
    }

    /// Stores the named groups of a regular expression from what it has captured.
    fn store_named(&self, regex: &Regex, captures: &Captures) {
        for (group, name) in regex.names() {
            if let Some(slot) = self.slots().of(name) {
                self.bindings().store(slot, captures.group(*group).unwrap_or_default());
            }
        }
    }
}
