//! HTTP as a protocol of configurations, by one name for all that stands below a request.
//!
//! A request runs by a plan, a plan holds settings, and settings hold templates of requests. [`Http`] ties the types together: a file
//! below a request names them through [`Protocol`], whose implementation is in `load::protocol`.

use tw_core::module::Protocol;

/// HTTP as a protocol of configurations.
pub struct Http;

/// A client's request: the session that templates and settings are about.
pub type Session = <Http as Protocol>::Session;
/// A configuration that is live.
pub type Generation = tw_core::generation::Generation<<Http as Protocol>::Config>;
/// A configuration that is live, as loops use it.
pub type GenerationRef = tw_core::config_thread::GenerationRef<Generation>;
/// A configuration that is live, as one loop holds it.
pub type LoopGeneration = tw_core::generation::LoopGeneration<<Http as Protocol>::Config>;
/// Context in which HTTP modules resolve their settings.
pub type Resolve<'a> = tw_core::load::Resolve<'a, Http>;
