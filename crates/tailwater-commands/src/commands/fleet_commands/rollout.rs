//! `tailwater fleet rollout` and `rollback`: orders to nodes, wave by wave, with a look at their health in between.

use std::time::{Duration, Instant};

use tw_fleet::{ConfigurationClient, ConfigurationOrder, ConfigurationReport, ReportState, SigningKey};

use super::health::complaint;
use super::{ORDER, connect, failed, find, load, reports, signing_key, unix_ms, versions};
use crate::cli::{FleetOptions, WaveSize};
use crate::output::console::{Console, Fault};
use crate::output::stdout::write_out;

/// Time between two looks at the reports.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time in which a node that follows reports at least once.
const LIFE_SIGN: Duration = Duration::from_secs(4);
/// Time that a node has to take over a version.
const TAKE_OVER: Duration = Duration::from_secs(60);
/// Time without a report after which a node is not healthy.
const SILENCE: Duration = Duration::from_secs(10);

struct Rollout<'a> {
    client: ConfigurationClient,
    key: SigningKey,
    fleet: String,
    options: &'a FleetOptions,
}

fn begin<'a>(options: &'a FleetOptions, console: &Console) -> Result<Rollout<'a>, Fault> {
    let key = signing_key(options)?;
    let (_, fleet) = load(&options.main, console)?;
    let settings = fleet.settings();
    Ok(Rollout { client: connect(settings)?, key, fleet: settings.name.to_string(), options })
}

/// Nodes of each wave: those that the waves before did not have.
fn waves(sizes: &[WaveSize], count: usize) -> Vec<std::ops::Range<usize>> {
    let mut waves = Vec::new();
    let mut done = 0;
    let ends = sizes.iter().map(|size| match size {
        WaveSize::Nodes(nodes) => usize::try_from(*nodes).unwrap_or(count),
        WaveSize::Percent(percent) => (count * usize::try_from(*percent).unwrap_or(100)).div_ceil(100),
    });
    for end in ends.chain([count]) {
        let end = end.min(count);
        if end > done {
            waves.push(done..end);
            done = end;
        }
    }
    waves
}

/// Rolls a version out, and back if a node refuses it or is not healthy.
pub(super) fn roll_out(options: &FleetOptions, console: &Console) -> Result<(), Fault> {
    let mut rollout = begin(options, console)?;
    let version = find(versions(&mut rollout.client)?, options.version)?;
    let (live, silent) = rollout.nodes()?;
    if live.is_empty() {
        return Err(Fault::emerg("no node follows configurations")
            .hint("start \"tailwater fleet follow\" on the nodes"));
    }
    let number = version.number;
    let digest = version.digest();
    let mut ordered: Vec<ConfigurationReport> = Vec::new();
    let all = waves(&options.waves, live.len());
    for (nth, wave) in all.iter().enumerate() {
        let nodes = &live[wave.clone()];
        let names: Vec<_> = nodes.iter().map(|report| &*report.node).collect();
        write_out(&format!("wave {} of {}: version {number} for {}\n", nth + 1, all.len(), names.join(", ")));
        ordered.extend(nodes.iter().cloned());
        let serial = rollout.order(nodes, number, &digest)?;
        let healthy = rollout.wait(nodes, serial, number).and_then(|taken| rollout.settle(&taken));
        if let Err(why) = healthy {
            console.fault(&Fault::emerg(format!("version {number} is rolled back: {}", why.message)));
            rollout.go_back(&ordered, number)?;
            return Err(super::reported());
        }
    }
    write_out(&format!("version {number} is served by {} nodes\n", live.len()));
    if !silent.is_empty() {
        let names: Vec<_> = silent.iter().map(|report| &*report.node).collect();
        rollout.order(&silent, number, &digest)?;
        write_out(&format!("silent, ordered for when they are back: {}\n", names.join(", ")));
    }
    Ok(())
}

/// Orders all nodes back to what they served before.
pub(super) fn roll_back(options: &FleetOptions, console: &Console) -> Result<(), Fault> {
    let mut rollout = begin(options, console)?;
    let (live, _) = rollout.nodes()?;
    // A node without a version before has nothing to go back to.
    let live: Vec<_> = live.into_iter().filter(|report| report.number > 0).collect();
    if live.is_empty() {
        return Err(Fault::emerg("no node serves a version that was pushed"));
    }
    rollout.back(&live)
}

impl Rollout<'_> {
    /// Reports of nodes that follow, and of those that do not report any more.
    fn nodes(&mut self) -> Result<(Vec<ConfigurationReport>, Vec<ConfigurationReport>), Fault> {
        let before = reports(&mut self.client)?;
        self.client.pause(LIFE_SIGN);
        let now = reports(&mut self.client)?;
        // Clocks of nodes are not compared with ours.
        let is_live = |report: &ConfigurationReport| {
            before.iter().all(|configuration_report| {
                configuration_report.node != report.node || configuration_report.time != report.time
            })
        };
        Ok(now.into_iter().partition(is_live))
    }

    /// Orders nodes to serve a version; 0 is what they served before. Returns the number of the order.
    fn order(&mut self, nodes: &[ConfigurationReport], number: u64, digest: &str) -> Result<u64, Fault> {
        let last = nodes.iter().map(|report| report.serial).max().unwrap_or(0);
        let serial = unix_ms().max(last.saturating_add(1));
        for report in nodes {
            let order = ConfigurationOrder {
                fleet: self.fleet.clone(),
                node: report.node.clone(),
                number,
                digest: digest.to_owned(),
                serial,
                settle_s: if number == 0 { 0 } else { self.options.settle.as_secs() },
                max_errors: self.options.max_errors,
                leaves: (number == 0).then_some(report.number),
            };
            let value = order.sign(&self.key);
            let set = self.client.set(&format!("{ORDER}{}", report.node), &value, None);
            set.map_err(|error| failed(&error))?;
        }
        Ok(serial)
    }

    /// Waits until all nodes have obeyed. Returns their reports.
    fn wait(
        &mut self,
        nodes: &[ConfigurationReport],
        serial: u64,
        number: u64,
    ) -> Result<Vec<ConfigurationReport>, Fault> {
        let end = Instant::now() + TAKE_OVER;
        loop {
            let now = reports(&mut self.client)?;
            let of = |node: &ConfigurationReport| {
                now.iter().find(|report| report.node == node.node && report.serial >= serial)
            };
            let done: Vec<_> = nodes.iter().filter_map(of).cloned().collect();
            // A node that has left the version by itself has gone back, too.
            let has_left = |report: &ConfigurationReport| {
                number == 0
                    && nodes.iter().any(|node| node.node == report.node && node.number != report.number)
            };
            let is_refused =
                |report: &&ConfigurationReport| report.state != ReportState::Serving && !has_left(report);
            if let Some(refused) = done.iter().find(is_refused) {
                return Err(Fault::emerg(format!("{} refuses it: {}", refused.node, refused.message)));
            }
            if let Some(other) = done.iter().find(|report| number != 0 && report.number != number) {
                return Err(Fault::emerg(format!("{} serves version {}", other.node, other.number)));
            }
            if done.len() == nodes.len() {
                return Ok(done);
            }
            if Instant::now() >= end {
                let missing = nodes.iter().find(|node| of(node).is_none()).map_or("", |node| &node.node);
                return Err(Fault::emerg(format!("{missing} does not answer")));
            }
            self.client.pause(INTERVAL);
        }
    }

    /// Watches nodes while a wave settles.
    fn settle(&mut self, taken: &[ConfigurationReport]) -> Result<(), Fault> {
        let end = Instant::now() + self.options.settle;
        let mut seen_values: Vec<_> = taken.iter().map(|report| (report.time, Instant::now())).collect();
        loop {
            let is_over = Instant::now() >= end;
            let now = reports(&mut self.client)?;
            for (before, seen_value) in taken.iter().zip(&mut seen_values) {
                let report = now.iter().find(|report| report.node == before.node);
                if let Some(report) = report.filter(|report| report.time != seen_value.0) {
                    *seen_value = (report.time, Instant::now());
                }
                if seen_value.1.elapsed() > SILENCE {
                    return Err(Fault::emerg(format!("{} does not report any more", before.node)));
                }
                if let Some(report) = report.filter(|report| report.number != before.number) {
                    return Err(Fault::emerg(format!("{} {}", before.node, report.message)));
                }
                if let Some(why) =
                    report.and_then(|report| complaint(before, report, self.options.max_errors))
                {
                    return Err(Fault::emerg(format!("{} {why}", before.node)));
                }
            }
            if is_over {
                return Ok(());
            }
            self.client.pause(INTERVAL);
        }
    }

    /// Rolls back nodes that were ordered `number`, as far as they serve it.
    fn go_back(&mut self, ordered: &[ConfigurationReport], number: u64) -> Result<(), Fault> {
        let now = reports(&mut self.client)?;
        let was_other =
            |node: &str| ordered.iter().any(|before| before.node == node && before.number != number);
        let (serving, others): (Vec<_>, Vec<_>) = now
            .into_iter()
            .filter(|report| was_other(&report.node))
            .partition(|report| report.number == number);
        // A node that has not carried out its order yet must not do so later.
        for report in others.iter().filter(|report| report.state != ReportState::Refused) {
            let removed = self.client.remove(&format!("{ORDER}{}", report.node));
            removed.map_err(|error| failed(&error))?;
        }
        if serving.is_empty() { Ok(()) } else { self.back(&serving) }
    }

    fn back(&mut self, nodes: &[ConfigurationReport]) -> Result<(), Fault> {
        let serial = self.order(nodes, 0, "")?;
        for report in self.wait(nodes, serial, 0)? {
            write_out(&format!("{} serves version {} again\n", report.node, report.number));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_grow_to_all_nodes() {
        let sizes = [WaveSize::Nodes(1), WaveSize::Percent(25)];
        assert_eq!(waves(&sizes, 100), [0..1, 1..25, 25..100]);
        assert_eq!(waves(&sizes, 3), [0..1, 1..3]);
        assert_eq!(waves(&sizes, 1), vec![0..1; 1]);
        assert_eq!(waves(&[], 2), vec![0..2; 1]);
        assert_eq!(waves(&[WaveSize::Percent(100), WaveSize::Nodes(9)], 2), vec![0..2; 1]);
    }
}
