//! Context in which the settings of HTTP modules are resolved.

use crate::http::Http;

/// Context of HTTP modules while their settings are resolved.
pub type Resolve<'a> = tw_core::load::Resolve<'a, Http>;
