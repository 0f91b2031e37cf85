//! The module contract: one feature, one file, one shape.
//!
//! A module is a type of settings. It names its directives (one record each), its settings as written ([`Settings::Raw`]),
//! how those resolve against the enclosing block, and the handlers it installs into a location's [`Plan`]. The server
//! knows modules only through [`Module`], which erases the type at load; nothing is looked up by type per request.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{ConfError, Cx, Directive, DirectiveInfo, Node};

use crate::core::location::Location;
use crate::http::plan::Plan;
use crate::load::Resolve;
use crate::vars::VarDef;
use tw_core::metrics::Metric;
use tw_core::reach::Reach;

/// Takes an inner block into an outer one: both as written, and the inner one's node.
pub type TakeIf<R> = fn(&mut R, &mut R, &Node, &mut Cx<'_>) -> Result<(), ConfError>;

/// The settings of one module at one block: `http`, `server`, `location` or `if`.
pub trait Settings: Sized + Send + Sync + 'static {
    /// Settings as written; `Default` is "nothing written".
    type Raw: Default + 'static;
    /// One record per directive.
    const DIRECTIVES: &'static [Directive<Self::Raw>];
    /// Variables this module provides.
    const VARIABLES: &'static [VarDef] = &[];
    /// Metrics this module provides: one record each, beside the code that counts. [`crate::metrics`] has an example.
    const METRICS: &'static [Metric] = &[];
    /// Limits this module keeps, for `docs/limits.md`.
    const LIMITS: &'static [Limit] = &[];

    /// Takes in an `if` that stands in the block: its condition is `block`'s arguments, what is written in it the second
    /// argument. Called in the order of the blocks, among the directives around them. For modules whose directives run in
    /// the order they are written in.
    const TAKE_IF: Option<TakeIf<Self::Raw>> = None;

    /// Turns what was written into what is used. `outer` is the resolved enclosing block, `None` at `http`.
    /// After this no setting is unset.
    fn resolve(raw: Self::Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError>;

    /// Whether a block in this one, in which nothing of the module is written, would resolve to the same. It then shares
    /// these settings: a large configuration has many such blocks.
    fn are_shared(&self) -> bool {
        false
    }

    /// Adds handlers and filters to the plan of a location, only if the feature is on there.
    fn install(self: &Arc<Self>, _plan: &mut Plan) {}

    /// Says which files requests at a location with the core settings `core` make the module open or change, and to
    /// whom they make it connect: the sandbox of the process allows what some module says. What is opened while the
    /// configuration is loaded, and what the core module says, `root` and `alias`, need not be said.
    fn reach(&self, _core: &Location, _reach: &mut Reach) {}
}

/// A module with its type erased, as THE LIST holds it.
pub struct Module {
    /// The module's name, for documents and messages.
    pub name: &'static str,
    erased: &'static dyn Erased,
}

/// Settings as written, type erased; `None` if nothing is.
pub(crate) type Raw = Option<Box<dyn Any>>;
/// Settings as used, type erased.
pub(crate) type Resolved = Arc<dyn Any + Send + Sync>;

impl Module {
    /// A module whose directives stand in `http`, `server`, `location` and below.
    pub const fn http<S: Settings>(name: &'static str) -> Self {
        Self { name, erased: &Of::<S>(PhantomData) }
    }

    /// The records of all directives, without their setters.
    pub fn directives(&self) -> Vec<DirectiveInfo> {
        self.erased.directives()
    }

    /// The variables the module provides.
    pub fn variables(&self) -> &'static [VarDef] {
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

    pub(crate) fn set(
        &self,
        index: usize,
        raw: &mut Raw,
        node: &Node,
        cx: &mut Cx<'_>,
    ) -> Result<(), ConfError> {
        self.erased.set(index, raw, node, cx)
    }

    pub(crate) fn takes_ifs(&self) -> bool {
        self.erased.takes_ifs()
    }

    pub(crate) fn take_if(
        &self,
        raw: &mut Raw,
        inner: &mut Raw,
        block: &Node,
        cx: &mut Cx<'_>,
    ) -> Result<(), ConfError> {
        self.erased.take_if(raw, inner, block, cx)
    }

    pub(crate) fn resolve(
        &self,
        raw: Raw,
        outer: Option<&Resolved>,
        cx: &mut Resolve<'_>,
    ) -> Result<Resolved, ConfError> {
        self.erased.resolve(raw, outer, cx)
    }

    pub(crate) fn install(&self, settings: &Resolved, plan: &mut Plan) {
        self.erased.install(settings, plan);
    }

    pub(crate) fn reach(&self, settings: &Resolved, core: &Location, reach: &mut Reach) {
        self.erased.reach(settings, core, reach);
    }
}

trait Erased: Sync {
    fn directives(&self) -> Vec<DirectiveInfo>;
    fn variables(&self) -> &'static [VarDef];
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
        cx: &mut Resolve<'_>,
    ) -> Result<Resolved, ConfError>;
    fn install(&self, settings: &Resolved, plan: &mut Plan);
    fn reach(&self, settings: &Resolved, core: &Location, reach: &mut Reach);
}

struct Of<S>(PhantomData<fn() -> S>);

/// Why a downcast in this file cannot fail.
const SAME_TYPE: &str = "a scope keeps the settings of one module at that module's index";

/// What is written so far.
fn written<S: Settings>(raw: &mut Raw) -> &mut S::Raw {
    raw.get_or_insert_with(|| Box::new(S::Raw::default())).downcast_mut().expect(SAME_TYPE)
}

impl<S: Settings> Erased for Of<S> {
    fn directives(&self) -> Vec<DirectiveInfo> {
        S::DIRECTIVES.iter().map(Directive::info).collect()
    }

    fn variables(&self) -> &'static [VarDef] {
        S::VARIABLES
    }

    fn metrics(&self) -> &'static [Metric] {
        S::METRICS
    }

    fn limits(&self) -> &'static [Limit] {
        S::LIMITS
    }

    fn set(&self, index: usize, raw: &mut Raw, node: &Node, cx: &mut Cx<'_>) -> Result<(), ConfError> {
        let raw = written::<S>(raw);
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
            Some(take) => take(written::<S>(raw), written::<S>(inner), block, cx),
            None => Ok(()),
        }
    }

    fn resolve(
        &self,
        raw: Raw,
        outer: Option<&Resolved>,
        cx: &mut Resolve<'_>,
    ) -> Result<Resolved, ConfError> {
        let settings = outer.map(|o| o.downcast_ref::<S>().expect(SAME_TYPE));
        let raw = match (raw, outer) {
            (Some(raw), _) => *raw.downcast::<S::Raw>().expect(SAME_TYPE),
            (None, Some(outer)) if settings.is_some_and(S::are_shared) => return Ok(Arc::clone(outer)),
            (None, _) => S::Raw::default(),
        };
        Ok(Arc::new(S::resolve(raw, settings, cx)?))
    }

    fn install(&self, settings: &Resolved, plan: &mut Plan) {
        let settings = Arc::clone(settings).downcast::<S>().expect(SAME_TYPE);
        settings.install(plan);
    }

    fn reach(&self, settings: &Resolved, core: &Location, reach: &mut Reach) {
        settings.downcast_ref::<S>().expect(SAME_TYPE).reach(core, reach);
    }
}
