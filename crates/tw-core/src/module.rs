//! The module contract: one feature, one file, one shape.
//!
//! A module is a type of settings. It names its directives (one record each), its settings as written ([`Settings::Raw`]),
//! how those resolve against the enclosing block, and the handlers it installs into a block's [`Protocol::Plan`]. The
//! server knows modules only through [`Module`], which erases the type at load; nothing is looked up by type per request.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{ConfError, Contexts, Cx, Directive, DirectiveInfo, Node};

use crate::generation::Configuration;
use crate::load::Resolve;
use crate::metrics::Metric;
use crate::reach::Reach;
use crate::session::Session;
use crate::vars::VarDef;

/// Takes an inner block into an outer one: both as written, and the inner one's node.
pub type TakeIf<R> = fn(&mut R, &mut R, &Node, &mut Cx<'_>) -> Result<(), ConfError>;

/// A protocol that modules are written for.
pub trait Protocol: Sized + 'static {
    /// Name of the protocol's block in `main`: `http`.
    const NAME: &'static str;
    /// The kinds of block its directives stand in. The record of a directive that several protocols have names those of all
    /// of them; each has its own of these.
    const CONTEXTS: Contexts;
    /// A client being served.
    type Session: Session;
    /// Compiled form of a block; modules add handlers to it.
    type Plan;
    /// The protocol's own settings at a block.
    type Core;
    /// Position in the configuration of the block that is being resolved.
    type Block;
    /// A loaded configuration.
    type Config: Configuration;
}

/// The settings of one module at one block of a protocol, such as `http`, `server`, `location` or `if`. A module that
/// decides by a [`Session`] alone can be one of every protocol.
pub trait Settings<P: Protocol>: Sized + Send + Sync + 'static {
    /// Settings as written; `Default` is "nothing written".
    type Raw: Default + 'static;
    /// One record per directive.
    const DIRECTIVES: &'static [Directive<Self::Raw>];
    /// Variables this module provides.
    const VARIABLES: &'static [VarDef<P::Session>] = &[];
    /// Metrics this module provides: one record each, beside the code that counts. [`crate::metrics`] has an example.
    const METRICS: &'static [Metric] = &[];
    /// Limits this module keeps, for `docs/limits.md`.
    const LIMITS: &'static [Limit] = &[];

    /// Takes in an `if` of the block: its condition is the arguments of `block`, its content the second argument.
    /// Called in the order of the blocks, among the directives around them. For modules whose directives run in the
    /// order they are written in.
    const TAKE_IF: Option<TakeIf<Self::Raw>> = None;

    /// Makes settings from the directives as written, with every default filled in. `outer` are the settings of the
    /// enclosing block, `None` at `http`.
    fn resolve(raw: Self::Raw, outer: Option<&Self>, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError>;

    /// Returns true if a nested block without directives of this module would resolve to the same settings. The block
    /// then shares these: a large configuration has many such blocks.
    fn are_shared(&self) -> bool {
        false
    }

    /// Adds handlers and filters to the plan of a location, only if the feature is on there.
    fn install(self: &Arc<Self>, _plan: &mut P::Plan) {}

    /// Declares the files that requests to a block with the core settings `core` make the module open or change, and
    /// the addresses that they make it connect to. The sandbox allows these. Files that are opened during loading
    /// need no declaration, nor do `root` and `alias`, which the core module declares.
    fn reach(&self, _core: &P::Core, _reach: &mut Reach) {}
}

/// A module with its type erased, as THE LIST holds it.
pub struct Module<P: Protocol> {
    /// The module's name, for documents and messages.
    pub name: &'static str,
    erased: &'static dyn Erased<P>,
}

/// Settings as written, type erased; `None` if nothing is.
pub type Raw = Option<Box<dyn Any>>;
/// Settings as used, type erased.
pub type Resolved = Arc<dyn Any + Send + Sync>;

impl<P: Protocol> Module<P> {
    /// The module whose settings are `S`.
    pub const fn of<S: Settings<P>>(name: &'static str) -> Self {
        Self { name, erased: &Of::<S>(PhantomData) }
    }

    /// The records of its directives in this protocol, without their setters, each with its number for [`set`](Self::set).
    pub fn directives(&self) -> Vec<(usize, DirectiveInfo)> {
        self.erased.directives()
    }

    /// The variables the module provides.
    pub fn variables(&self) -> &'static [VarDef<P::Session>] {
        self.erased.variables()
    }

    /// The metrics the module provides.
    pub fn metrics(&self) -> &'static [Metric] {
        self.erased.metrics()
    }

    /// The limits the module keeps.
    pub fn limits(&self) -> &'static [Limit] {
        self.erased.limits()
    }

    /// Reads its directive number `index`.
    pub fn set(&self, index: usize, raw: &mut Raw, node: &Node, cx: &mut Cx<'_>) -> Result<(), ConfError> {
        self.erased.set(index, raw, node, cx)
    }

    /// Returns true if the module takes part in `if` blocks.
    pub fn takes_ifs(&self) -> bool {
        self.erased.takes_ifs()
    }

    /// Takes in an `if` block.
    pub fn take_if(
        &self,
        raw: &mut Raw,
        inner: &mut Raw,
        block: &Node,
        cx: &mut Cx<'_>,
    ) -> Result<(), ConfError> {
        self.erased.take_if(raw, inner, block, cx)
    }

    /// Makes settings as used of those as written.
    pub fn resolve(
        &self,
        raw: Raw,
        outer: Option<&Resolved>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Resolved, ConfError> {
        self.erased.resolve(raw, outer, cx)
    }

    /// Adds its handlers to a plan.
    pub fn install(&self, settings: &Resolved, plan: &mut P::Plan) {
        self.erased.install(settings, plan);
    }

    /// Declares the files and addresses of the module to the sandbox.
    pub fn reach(&self, settings: &Resolved, core: &P::Core, reach: &mut Reach) {
        self.erased.reach(settings, core, reach);
    }
}

trait Erased<P: Protocol>: Sync {
    fn directives(&self) -> Vec<(usize, DirectiveInfo)>;
    fn variables(&self) -> &'static [VarDef<P::Session>];
    fn metrics(&self) -> &'static [Metric];
    fn limits(&self) -> &'static [Limit];
    fn set(&self, index: usize, raw: &mut Raw, node: &Node, cx: &mut Cx<'_>) -> Result<(), ConfError>;
    fn takes_ifs(&self) -> bool;
    fn take_if(&self, raw: &mut Raw, inner: &mut Raw, block: &Node, cx: &mut Cx<'_>)
    -> Result<(), ConfError>;
    fn resolve(
        &self,
        raw: Raw,
        outer: Option<&Resolved>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Resolved, ConfError>;
    fn install(&self, settings: &Resolved, plan: &mut P::Plan);
    fn reach(&self, settings: &Resolved, core: &P::Core, reach: &mut Reach);
}

struct Of<S>(PhantomData<fn() -> S>);

/// Why a downcast in this file cannot fail.
const SAME_TYPE: &str = "a scope keeps the settings of one module at that module's index";

/// Settings as written so far.
fn raw_settings<P: Protocol, S: Settings<P>>(raw: &mut Raw) -> &mut S::Raw {
    raw.get_or_insert_with(|| Box::new(S::Raw::default())).downcast_mut().expect(SAME_TYPE)
}

impl<P: Protocol, S: Settings<P>> Erased<P> for Of<S> {
    fn directives(&self) -> Vec<(usize, DirectiveInfo)> {
        let here = |info: DirectiveInfo| DirectiveInfo { contexts: info.contexts & P::CONTEXTS, ..info };
        let all = S::DIRECTIVES.iter().map(|directive| here(directive.info())).enumerate();
        all.filter(|(_, info)| info.contexts != 0).collect()
    }

    fn variables(&self) -> &'static [VarDef<P::Session>] {
        S::VARIABLES
    }

    fn metrics(&self) -> &'static [Metric] {
        S::METRICS
    }

    fn limits(&self) -> &'static [Limit] {
        S::LIMITS
    }

    fn set(&self, index: usize, raw: &mut Raw, node: &Node, cx: &mut Cx<'_>) -> Result<(), ConfError> {
        let raw = raw_settings::<P, S>(raw);
        (S::DIRECTIVES[index].set)(raw, node, cx)
    }

    fn takes_ifs(&self) -> bool {
        S::TAKE_IF.is_some()
    }

    fn take_if(
        &self,
        raw: &mut Raw,
        inner: &mut Raw,
        block: &Node,
        cx: &mut Cx<'_>,
    ) -> Result<(), ConfError> {
        match S::TAKE_IF {
            Some(take) => take(raw_settings::<P, S>(raw), raw_settings::<P, S>(inner), block, cx),
            None => Ok(()),
        }
    }

    fn resolve(
        &self,
        raw: Raw,
        outer: Option<&Resolved>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Resolved, ConfError> {
        let settings = outer.map(|o| o.downcast_ref::<S>().expect(SAME_TYPE));
        let raw = match (raw, outer) {
            (Some(raw), _) => *raw.downcast::<S::Raw>().expect(SAME_TYPE),
            (None, Some(outer)) if settings.is_some_and(S::are_shared) => return Ok(Arc::clone(outer)),
            (None, _) => S::Raw::default(),
        };
        Ok(Arc::new(S::resolve(raw, settings, cx)?))
    }

    fn install(&self, settings: &Resolved, plan: &mut P::Plan) {
        let settings = Arc::clone(settings).downcast::<S>().expect(SAME_TYPE);
        settings.install(plan);
    }

    fn reach(&self, settings: &Resolved, core: &P::Core, reach: &mut Reach) {
        settings.downcast_ref::<S>().expect(SAME_TYPE).reach(core, reach);
    }
}
