//! Awaited variables: computing one of them waits, as for a script. A template never waits, so such a variable gets its value before the handler
//! that reads it runs.
//!
//! ```text
//! resolve of each module ─ bind ─► slots that the module reads, here and in the blocks around
//! `map` and its like ─ define ───► slots that a computed variable reads
//! end of loading ────────────────► awaited variables before the handlers of each module
//! ```
//! A module that reads a variable of a variable reads that one, too. What a module may read is known, not what it reads for one request: a
//! variable can be computed that no request needs.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};

/// Computes an awaited variable, and stores its value in the session.
pub type AwaitVariable<S> =
    Arc<dyn for<'a> Fn(&'a mut S) -> Pin<Box<dyn Future<Output = ()> + 'a>> + Send + Sync>;

/// Slots that the modules of a block read, with those of the blocks around it.
#[derive(Clone, Default)]
pub struct VariableUses(Option<Arc<ModuleUses>>);

struct ModuleUses {
    module: &'static str,
    slots: Box<[u16]>,
    outer: VariableUses,
}

impl VariableUses {
    fn iter(&self) -> impl Iterator<Item = &ModuleUses> {
        std::iter::successors(self.0.as_deref(), |uses| uses.outer.0.as_deref())
    }
}

impl Drop for ModuleUses {
    /// A long list would be freed with a recursion of its length.
    fn drop(&mut self) {
        let mut next = self.outer.0.take();
        while let Some(mut uses) = next.and_then(Arc::into_inner) {
            next = uses.outer.0.take();
        }
    }
}

/// Reads of variables while a configuration is loaded.
pub(super) struct Reads<S> {
    /// Slots that were read since the last definition of a computed variable.
    since_definition: Vec<u16>,
    /// Slots that the module has read that is being resolved, without those of computed variables.
    of_module: Vec<u16>,
    /// Slots that computed variables read.
    dependencies: HashMap<u16, Vec<u16>>,
    awaited: Vec<(u16, AwaitVariable<S>)>,
}

impl<S> Default for Reads<S> {
    fn default() -> Self {
        Self {
            since_definition: Vec::new(),
            of_module: Vec::new(),
            dependencies: HashMap::default(),
            awaited: Vec::new(),
        }
    }
}

impl<S> Reads<S> {
    /// A slot is read.
    pub(super) fn read(&mut self, slot: u16) {
        self.since_definition.push(slot);
        self.of_module.push(slot);
    }

    /// A computed variable is defined: what was read since the last definition is read by it, and by nothing else.
    pub(super) fn define(&mut self, slot: u16) {
        let read = std::mem::take(&mut self.since_definition);
        self.of_module.clear();
        if !read.is_empty() {
            self.dependencies.entry(slot).or_default().extend(read);
        }
    }

    /// An awaited variable is defined. Of two definitions the later one holds.
    pub(super) fn define_awaited(&mut self, slot: u16, compute: AwaitVariable<S>) {
        self.awaited.retain(|(candidate, _)| *candidate != slot);
        self.awaited.push((slot, compute));
    }

    /// Ends the settings of one module in one block.
    pub(super) fn end_module(&mut self, module: &'static str, uses: &mut VariableUses) {
        self.since_definition.clear();
        if !self.of_module.is_empty() {
            let slots = std::mem::take(&mut self.of_module).into();
            let outer = std::mem::take(uses);
            *uses = VariableUses(Some(Arc::new(ModuleUses { module, slots, outer })));
        }
    }

    pub(super) fn has_awaited(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Awaited variables of each module, in the order of their definitions.
    pub(super) fn awaited_by(&self, uses: &VariableUses) -> Vec<(&'static str, Vec<AwaitVariable<S>>)> {
        let mut slots: Vec<(&'static str, HashSet<u16>)> = Vec::new();
        for ModuleUses { module, slots: read, .. } in uses.iter() {
            let at = slots.iter().position(|(candidate, _)| candidate == module).unwrap_or_else(|| {
                slots.push((module, HashSet::default()));
                slots.len() - 1
            });
            read.iter().for_each(|slot| self.add_with_dependencies(*slot, &mut slots[at].1));
        }
        let awaited = |slots: &HashSet<u16>| {
            let awaited = self.awaited.iter().filter(|(slot, _)| slots.contains(slot));
            awaited.map(|(_, compute)| compute.clone()).collect::<Vec<_>>()
        };
        let of_modules = slots.iter().map(|(module, slots)| (*module, awaited(slots)));
        of_modules.filter(|(_, awaited)| !awaited.is_empty()).collect()
    }

    fn add_with_dependencies(&self, slot: u16, slots: &mut HashSet<u16>) {
        let mut next = vec![slot];
        while let Some(slot) = next.pop() {
            if slots.insert(slot) {
                next.extend(self.dependencies.get(&slot).into_iter().flatten());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn awaited(reads: &Reads<()>, uses: &VariableUses) -> Vec<(&'static str, usize)> {
        reads.awaited_by(uses).into_iter().map(|(module, awaited)| (module, awaited.len())).collect()
    }

    #[test]
    fn modules_await_what_they_read_directly_or_by_other_variables() {
        let mut reads: Reads<()> = Reads::default();
        let compute: AwaitVariable<()> = Arc::new(|()| Box::pin(async {}));
        let mut http = VariableUses::default();
        // `map $script $mapped`, `map $mapped $twice`, and a format of a log.
        reads.read(1);
        reads.define(2);
        reads.read(2);
        reads.define(3);
        reads.end_module("map", &mut http);
        reads.read(9);
        reads.read(1);
        reads.end_module("log", &mut http);
        let mut location = http.clone();
        reads.read(3);
        reads.end_module("headers", &mut location);
        reads.read(9);
        reads.end_module("proxy", &mut location);
        assert!(!reads.has_awaited() && awaited(&reads, &location).is_empty());
        reads.define_awaited(1, compute.clone());
        reads.define_awaited(1, compute.clone());
        assert_eq!(awaited(&reads, &http), [("log", 1)], "a map alone reads nothing");
        assert_eq!(awaited(&reads, &location), [("headers", 1), ("log", 1)]);
        reads.define_awaited(9, compute);
        assert_eq!(awaited(&reads, &location), [("proxy", 1), ("headers", 1), ("log", 2)]);
    }

    #[test]
    fn long_lists_are_freed_without_recursion() {
        let mut reads: Reads<()> = Reads::default();
        let mut uses = VariableUses::default();
        for _ in 0..1_000_000 {
            reads.read(1);
            reads.end_module("log", &mut uses);
        }
        drop(uses);
    }
}
