//! Directives by name with the module they belong to, and raw settings by module.

use std::collections::HashMap;

use tw_conf::{ConfError, Contexts, DirectiveInfo};

use super::Resolve;
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

    /// Takes what is written of a module.
    fn take(&mut self, module: usize) -> Raw {
        self.0.iter_mut().find(|(of, _)| *of == module).and_then(|(_, raw)| raw.take())
    }
}

/// The modules of a protocol and their directives. One name can be two directives, in two kinds of block.
pub struct Table<P: Protocol> {
    modules: Vec<&'static Module<P>>,
    records: HashMap<&'static str, Vec<Record>>,
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
        let mut records: HashMap<_, Vec<Record>> = HashMap::new();
        for (at, module) in modules.iter().enumerate() {
            for (index, info) in module.directives() {
                records.entry(info.name).or_default().push(Record { module: at, index, info });
            }
        }
        Self { modules, records }
    }

    /// The modules in their order.
    pub fn modules(&self) -> &[&'static Module<P>] {
        &self.modules
    }

    /// The directive of this name in a kind of block; one that stands elsewhere, if there is none.
    pub fn find(&self, name: &str, context: Contexts) -> Option<Record> {
        let records = self.records.get(name)?;
        records.iter().find(|record| record.info.contexts & context != 0).or(records.first()).copied()
    }

    /// Every record.
    pub fn infos(&self) -> impl Iterator<Item = DirectiveInfo> + '_ {
        self.records.values().flatten().map(|record| record.info)
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
            done(at, &settings, &mut cx.block);
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use tw_conf::{Args, Directive, HTTP, MAIN, SERVER, STREAM_SERVER, record};

    use super::*;
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
    fn a_directive_of_several_protocols_stands_in_the_blocks_of_each() {
        static MODULES: [Module<Nothing>; 2] =
            [Module::of::<In<{ SERVER | HTTP }>>("both"), Module::of::<In<HTTP>>("other")];
        let contexts = |at: usize| MODULES[at].directives().first().map(|(_, info)| info.contexts);
        assert_eq!([contexts(0), contexts(1)], [Some(SERVER), None]);
    }
}
