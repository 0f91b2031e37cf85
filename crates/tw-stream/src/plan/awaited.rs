//! Awaited variables: steps that compute them before the handlers of the module that reads them.

use std::sync::Arc;

use tw_core::vars::{AwaitVariable, VarTable};

use super::{AccessEntry, LocalFuture, Plan, PlannedModules, PrereadEntry, SessionStep, StepDecision};
use crate::session::StreamSession;

/// Computes awaited variables.
struct AwaitedVariables(Box<[AwaitVariable<StreamSession>]>);

impl SessionStep for AwaitedVariables {
    fn run<'a>(&'a self, s: &'a mut StreamSession) -> LocalFuture<'a, StepDecision> {
        Box::pin(async {
            for compute in &self.0 {
                compute(s).await;
            }
            StepDecision::Pass
        })
    }
}

impl Plan {
    /// Has awaited variables computed before they are read. The whole configuration has to be read: what is read may be defined further
    /// down.
    pub(crate) fn await_variables(&mut self, vars: &VarTable<StreamSession>) {
        let uses = std::mem::take(&mut self.variable_uses);
        if vars.has_awaited() {
            for (module, variables) in vars.awaited_by(&uses) {
                self.await_for(module, variables);
            }
        }
    }

    /// Has variables computed before each place in which `module` reads them. What has no such place is read by the content, or by what it
    /// calls.
    fn await_for(&mut self, module: &str, variables: Vec<AwaitVariable<StreamSession>>) {
        let step: Arc<dyn SessionStep> = Arc::new(AwaitedVariables(variables.into()));
        let PlannedModules { preaccess, access, preread, log, .. } = &mut self.modules;
        let mut has_place = false;
        for (entries, modules) in [(&mut self.preaccess, preaccess), (&mut self.access, access)] {
            if let Some(at) = make_room(modules, module) {
                entries.insert(at, AccessEntry::Step(step.clone()));
                has_place = true;
            }
        }
        if let Some(at) = make_room(preread, module) {
            self.preread.insert(at, PrereadEntry::Step(step.clone()));
            has_place = true;
        }
        if log.contains(&module) {
            self.log_steps.push(step.clone());
            has_place = true;
        }
        if !has_place {
            self.content_steps.push(step);
        }
    }
}

/// Place in front of the handlers of a module, which with all behind it move on by one.
fn make_room(modules: &mut [(&'static str, usize)], module: &str) -> Option<usize> {
    let (_, at) = *modules.iter().find(|(name, _)| *name == module)?;
    modules.iter_mut().filter(|(_, start)| *start >= at).for_each(|(_, start)| *start += 1);
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_stand_in_front_of_the_handlers_of_their_module() {
        let mut modules = [("first", 0), ("second", 2), ("third", 3)];
        assert_eq!(make_room(&mut modules, "second"), Some(2));
        assert_eq!(modules, [("first", 0), ("second", 3), ("third", 4)]);
        assert_eq!(make_room(&mut modules, "first"), Some(0));
        assert_eq!(modules, [("first", 1), ("second", 4), ("third", 5)]);
        assert_eq!(make_room(&mut modules, "none"), None);
    }
}
