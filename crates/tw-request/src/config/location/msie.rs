//! Workarounds for old browsers: padding of short error pages (`msie_padding`) and redirects by a page
//! (`msie_refresh`).

use std::marker::PhantomData;

use tw_conf::{Directive, Setting, record};

use super::contexts::ALL;

/// Settings for Internet Explorer and its like.
#[derive(Debug, Clone, Copy)]
pub struct Msie {
    /// `msie_padding`: pages of errors are made longer, so that the browser shows them.
    pub padding: bool,
    /// `msie_refresh`: redirects are pages.
    pub refresh: bool,
}

/// Workarounds as written.
#[derive(Default)]
pub(super) struct Raw {
    padding: Setting<bool>,
    refresh: Setting<bool>,
}

/// Records of the directives, for the settings as written `R` of a location.
pub(super) struct Records<R>(PhantomData<R>);

impl<R: AsMut<Raw> + 'static> Records<R> {
    pub(super) const ALL: &'static [Directive<R>] = &[
        record::flag("msie_padding", ALL)
            .default("on")
            .doc("Makes the built-in pages of errors longer for browsers that show a page of their own instead of a short one.")
            .set(|raw, node, _| raw.as_mut().padding.set_flag(node)),
        record::flag("msie_refresh", ALL)
            .default("off")
            .doc("Sends Internet Explorer a page that refreshes itself instead of a redirect.")
            .set(|raw, node, _| raw.as_mut().refresh.set_flag(node)),
    ];
}

impl Msie {
    pub(super) fn resolve(raw: Raw, outer: Option<&Self>) -> Self {
        Self {
            padding: raw.padding.or(outer.map(|o| o.padding), true),
            refresh: raw.refresh.or(outer.map(|o| o.refresh), false),
        }
    }
}
