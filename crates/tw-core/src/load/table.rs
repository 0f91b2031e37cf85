//! Directives by name with the module they belong to, and raw settings by module.

use std::any::Any;
use std::collections::hash_map::Entry;
use std::ptr;
use std::sync::{Arc, OnceLock};

use foldhash::{HashMap, HashMapExt};
use tw_conf::{ConfError, Contexts, DirectiveInfo};

use super::Resolve;
use crate::metrics::Metric;
use crate::module::{Module, Protocol, Raw, Resolved};

/// Settings as written of those modules of which something is written, by their places in the table. Of the many modules
/// few have a word in a block.
#[derive(Default)]
pub struct RawSettings(Vec<(usize, Raw)>);

impl RawSettings {
    /// Raw settings of a module.
    pub fn of(&mut self, module: usize) -> &mut Raw {
        let at = self.0.iter().position(|(of, _)| *of == module).unwrap_or_else(|| {
            self.0.push((module, None));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    /// Directives as written of a module whose directives make an `R`; `None` if nothing is.
    pub fn get<R: 'static>(&self, module: usize) -> Option<&R> {
        let (_, raw) = self.0.iter().find(|(of, _)| *of == module)?;
        raw.as_ref()?.downcast_ref()
    }

    /// Takes what is written of a module.
    fn take(&mut self, module: usize) -> Raw {
        self.0.iter_mut().find(|(of, _)| *of == module).and_then(|(_, raw)| raw.take())
    }
}

/// The modules of a protocol and their directives. One name can be two directives, in two kinds of block.
pub struct Table<P: Protocol> {
    modules: Vec<&'static Module<P>>,
    records: Vec<Record>,
    by_name: HashMap<&'static str, SameName>,
}

/// Directives of one name, by their places among the records: the first, and in few cases others.
struct SameName {
    first: usize,
    others: Vec<usize>,
}

/// A directive, and whose it is.
#[derive(Clone, Copy)]
pub struct Record {
    /// The place of the module in the table.
    pub module: usize,
    /// The place of the directive among those of the module.
    pub index: usize,
    /// Record of the directive.
    pub info: DirectiveInfo,
}

impl<P: Protocol> Table<P> {
    /// The table of these modules.
    pub fn new(modules: Vec<&'static Module<P>>) -> Self {
        let directives = modules.iter().enumerate().flat_map(|(module, directives)| {
            directives.directives().into_iter().map(move |(index, info)| Record { module, index, info })
        });
        let records: Vec<_> = directives.collect();
        let mut by_name: HashMap<_, SameName> = HashMap::with_capacity(records.len());
        for (at, record) in records.iter().enumerate() {
            match by_name.entry(record.info.name) {
                Entry::Vacant(place) => drop(place.insert(SameName { first: at, others: Vec::new() })),
                Entry::Occupied(mut same) => same.get_mut().others.push(at),
            }
        }
        Self { modules, records, by_name }
    }

    /// Metrics of every module, with its name.
    pub fn metrics(&self) -> impl Iterator<Item = (&'static str, &'static [Metric])> {
        self.modules.iter().map(|module| (module.name, module.metrics()))
    }

    /// The table of these modules, which is `first` unless a table of others was made before. What a table contains is in the
    /// program, and making it takes longer than loading a small configuration.
    pub fn kept(first: &OnceLock<Arc<Self>>, modules: Vec<&'static Module<P>>) -> Arc<Self> {
        let first = first.get_or_init(|| Arc::new(Self::new(modules.clone())));
        if first.modules.iter().zip(&modules).all(|(known_module, module)| ptr::eq(*known_module, *module))
            && first.modules.len() == modules.len()
        {
            first.clone()
        } else {
            Arc::new(Self::new(modules))
        }
    }

    /// The modules in their order.
    pub fn modules(&self) -> &[&'static Module<P>] {
        &self.modules
    }

    /// The directive of this name in a kind of block; one that stands elsewhere, if there is none.
    pub fn find(&self, name: &str, context: Contexts) -> Option<Record> {
        let SameName { first, others } = self.by_name.get(name)?;
        let mut places = std::iter::once(first).chain(others);
        let is_here = |at: &&usize| self.records[**at].info.contexts & context != 0;
        Some(self.records[*places.find(is_here).unwrap_or(first)])
    }

    /// Every record.
    pub fn infos(&self) -> impl Iterator<Item = DirectiveInfo> + '_ {
        self.records.iter().map(|record| record.info)
    }

    /// Makes settings as used of what is written in a block inside `outer`. After each module, `done` gets its place and
    /// the settings so far.
    ///
    /// # Errors
    /// A mistake that leaves a module without settings. Others are kept, and the block goes on as if nothing of that module
    /// were written: the blocks after it have something to say, too.
    pub fn resolve(
        &self,
        mut raws: RawSettings,
        outer: Option<&[Resolved]>,
        cx: &mut Resolve<'_, P>,
        mut done: impl FnMut(usize, &[Resolved], &mut P::Block),
    ) -> Result<Vec<Resolved>, ConfError> {
        let mut settings = Vec::with_capacity(self.modules.len());
        for (at, module) in self.modules.iter().enumerate() {
            let outer = outer.map(|outer| &outer[at]);
            settings.push(match module.resolve(raws.take(at), outer, cx) {
                Ok(resolved) => resolved,
                Err(error) => {
                    cx.mistakes.add(error);
                    module.resolve(None, outer, cx)?
                }
            });
            cx.vars.end_module(module.name);
            done(at, &settings, &mut cx.block);
        }
        Ok(settings)
    }
}

/// Settings of the module at index `at`, whose type is `T`.
///
/// # Panics
/// The settings of the module have another type.
pub fn settings_of<T: Any + Send + Sync>(settings: &[Resolved], at: usize) -> Arc<T> {
    settings[at].clone().downcast().expect("the type of the settings of the module")
}

#[cfg(test)]
mod tests {
    use tw_conf::{Args, Directive, HTTP, MAIN, SERVER, STREAM_SERVER, record};

    use super::*;
    use crate::generation::ProcessConfig;
    use crate::module::Settings;
    use crate::testing::Plain;

    /// Protocol without sessions.
    struct Nothing;

    impl Protocol for Nothing {
        const NAME: &'static str = "nothing";
        const CONTEXTS: Contexts = SERVER | STREAM_SERVER;
        type Session = Plain;
        type Plan = ();
        type Core = ();
        type Block = ();
        type Config = ProcessConfig;
    }

    /// A module of any protocol, whose directive stands in one kind of block.
    struct In<const CONTEXT: u32>;

    impl<P: Protocol, const CONTEXT: u32> Settings<P> for In<CONTEXT> {
        type Raw = ();

        const DIRECTIVES: &'static [Directive<()>] =
            &[record::new("same", "", CONTEXT, Args::NONE).doc("The same name.").set(|_, _, _| Ok(()))];

        fn resolve(_: (), _: Option<&Self>, _: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
            Ok(Self)
        }
    }

    #[test]
    fn a_name_belongs_to_a_module_by_the_kind_of_block() {
        static MODULES: [Module<Nothing>; 2] =
            [Module::of::<In<SERVER>>("one"), Module::of::<In<STREAM_SERVER>>("two")];
        let table = Table::new(MODULES.iter().collect());
        let module = |context| table.find("same", context).map(|record| table.modules()[record.module].name);
        assert_eq!(module(SERVER), Some("one"));
        assert_eq!(module(STREAM_SERVER), Some("two"));
        assert_eq!(module(MAIN), Some("one"), "for the message that says where it may stand");
        assert!(table.find("other", SERVER).is_none());
    }

    #[test]
    fn kept_table_is_that_of_the_same_modules() {
        static MODULES: [Module<Nothing>; 2] =
            [Module::of::<In<SERVER>>("one"), Module::of::<In<STREAM_SERVER>>("two")];
        let first = OnceLock::new();
        let kept = |modules: &'static [Module<Nothing>]| Table::kept(&first, modules.iter().collect());
        let table = kept(&MODULES);
        assert!(Arc::ptr_eq(&table, &kept(&MODULES)));
        assert_eq!(kept(&MODULES[..1]).modules().len(), 1, "of other modules");
        assert!(Arc::ptr_eq(&table, &kept(&MODULES)));
    }

    #[test]
    fn a_directive_of_several_protocols_stands_in_the_blocks_of_each() {
        static MODULES: [Module<Nothing>; 2] =
            [Module::of::<In<{ SERVER | HTTP }>>("both"), Module::of::<In<HTTP>>("other")];
        let contexts = |at: usize| MODULES[at].directives().first().map(|(_, info)| info.contexts);
        assert_eq!([contexts(0), contexts(1)], [Some(SERVER), None]);
    }
}
