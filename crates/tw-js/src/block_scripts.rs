//! Directives of one block that scripts have in every protocol: modules, variables, `ngx.fetch()`.

use std::sync::Arc;

use tw_conf::{ConfError, Word};
use tw_connect::{ConnectingProtocol, resolving};
use tw_core::load::Resolve;
use tw_core::reach::Reach;

use crate::block_variables;
use crate::common::{Common, reach_files};
use crate::fetch_settings::FetchDirectives;
use crate::periodic::{Periodic, RawPeriodic};
use crate::raw::Raw;
use crate::script_session::ScriptSession;
use crate::set_of_plan::SetOfPlan;

/// Scripts of one block.
pub(crate) struct BlockScripts {
    common: Common,
    /// The part of plans that variables need; `None` without modules.
    pub(crate) part: Option<Arc<SetOfPlan>>,
    fetch: FetchDirectives,
}

impl BlockScripts {
    /// Resolves the directives of a block, and takes them out of `raw`.
    pub(crate) fn resolve<P: ConnectingProtocol<Session: ScriptSession>>(
        raw: &mut Raw,
        outer: Option<&Self>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Self, ConfError> {
        let common = Common::resolve(raw, outer.map(|outer| &outer.common), cx)?;
        for set in &raw.sets {
            block_variables::define_script_variable(set, cx)?;
        }
        for var in &raw.vars {
            block_variables::define_variable(var, cx)?;
        }
        let own_fetch =
            FetchDirectives::resolve(std::mem::take(&mut raw.fetch), outer.map(|outer| &outer.fetch));
        let outer_part = outer.and_then(|outer| outer.part.as_ref());
        let fetch = own_fetch.clone().or_else(|| outer.map(|outer| outer.fetch.clone()));
        let fetch = fetch.ok_or_else(|| ConfError::new("no settings of ngx.fetch()"))?;
        let part = match (&common.set, outer_part) {
            (Some(set), Some(part)) if Arc::ptr_eq(set, &part.set) && own_fetch.is_none() => {
                Some(part.clone())
            }
            (Some(set), part) => Some(Arc::new(SetOfPlan {
                set: set.clone(),
                counters: common.counters.clone(),
                fetch: match part.filter(|_| own_fetch.is_none()) {
                    Some(part) => part.fetch.clone(),
                    None => fetch.settings(cx)?,
                },
            })),
            (None, _) => None,
        };
        Ok(Self { common, part, fetch })
    }

    /// The function that a directive of the block names.
    pub(crate) fn own_function(
        &self,
        word: Option<Word>,
        directive: &str,
    ) -> Result<Option<Arc<str>>, ConfError> {
        match (word, &self.part) {
            (Some(word), None) => Err(ConfError::new(format!(
                "no imports defined for \"{directive}\" \"{word}\", use js_import directive"
            ))
            .at(word.span)),
            (word, _) => Ok(word.map(|word| word.lossy().into())),
        }
    }

    /// The functions of `js_periodic` in the block.
    pub(crate) fn periodics<P: ConnectingProtocol>(
        &self,
        written: &[RawPeriodic],
        cx: &Resolve<'_, P>,
    ) -> Result<Box<[Periodic]>, ConfError> {
        let mut all = Vec::new();
        for raw in written {
            if let Some(function) = self.own_function(Some(raw.function.clone()), "js_periodic")? {
                all.push(raw.resolve(function, cx)?);
            }
        }
        Ok(all.into())
    }

    // A script may ask any server by `ngx.fetch()`.
    /// Adds what the sandbox must allow.
    pub(crate) fn reach(&self, reach: &mut Reach) {
        if let Some(part) = &self.part {
            reach.connects();
            resolving::reach(reach);
            part.fetch.verified.reach(reach);
            reach_files(&self.common, reach);
        }
    }
}
