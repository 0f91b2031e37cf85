//! Tasks that announce what this node knows and take in what others say, and the shares of rates that follow. They do nothing as long
//! as no zone and no group of upstream servers names the fleet.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tw_log::Level;

use crate::announcement::{ANNOUNCEMENT_SIZE_MAX, Announcement, KEYS_MAX, RATES_MAX};
use crate::announcer::{Demands, SharedParts};
use crate::engine::{AnnouncementReader, Engine, EngineError, Session};
use crate::node::{Node, Role};
use crate::peer_health::announced;
use crate::rate_shares::{NodeCount, OtherNodes, OwnKeys, SILENCE_MAX};
use crate::shared_rate::SharedRate;

/// Time between two announcements, and between two computations of shares.
pub(crate) const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);

/// Time for which computed shares are used, in milliseconds: a thread that hangs does not keep a large share.
const SHARE_TIME_MS: u64 = 3000;

/// Pause before announcements are read again, after the engine has refused that.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// Demand in parts of an equal share of the rate below which a key is not announced: that share is enough for it.
const ANNOUNCED_PART: u64 = 10;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Keys whose demand a node announces, of one rate.
    const KEYS_OF_RATE_MAX: usize = 256, count,
        "keys that are asked less have the smallest share, if other nodes announce them, or an equal one";
}

impl<E: Engine + 'static> Node<E> {
    /// Sets what is shared from now on.
    pub(crate) fn set_shared_parts(&self, parts: SharedParts) {
        let too_many = parts.rates.len().saturating_sub(RATES_MAX);
        if too_many > 0 {
            let message =
                format_args!("{too_many} rates of zones have equal shares: more than {RATES_MAX} are shared");
            self.log(Level::Warn, message);
        }
        *self.announcer.parts.borrow_mut() = parts;
        self.announcer.parts_changed.notify_waiters();
        // Loops use the new rates already; their demand counts in the next round.
        self.set_equal_shares();
    }

    /// Announces and computes shares again and again.
    pub(crate) async fn announce_all(self: Rc<Self>) {
        if let Ok(saved) = self.host.saved_position() {
            *self.announcer.others.borrow_mut() = OtherNodes::new(saved.nodes, self.host.now());
        }
        loop {
            self.share();
            self.host.sleep(ANNOUNCE_INTERVAL).await;
        }
    }

    /// Reads announcements as long as a connection lasts.
    pub(crate) async fn hear_all(self: Rc<Self>, session: Rc<E::Session>) {
        loop {
            let changed = self.announcer.parts_changed.notified();
            if self.announcer.parts.borrow().is_empty() {
                changed.await;
                continue;
            }
            let error = match session.announcements().await {
                Ok(mut reader) => loop {
                    match reader.next().await {
                        Ok(text) => self.hear(&text),
                        Err(error) => break error,
                    }
                },
                Err(error) => error,
            };
            match &error {
                EngineError::Refused(_) => self.log_some(
                    Level::Error,
                    "announcements",
                    format_args!(
                        "announcements of other nodes cannot be read: {error}; rates have equal shares"
                    ),
                ),
                // Another connection follows, and is read then.
                _ => return,
            }
            self.host.sleep(READ_AGAIN).await;
        }
    }

    fn hear(&self, text: &[u8]) {
        let now = self.host.now();
        let Some(announcement) = Announcement::decode(text) else {
            self.fleet.status.lock().unreadable_announcements += 1;
            return;
        };
        if announcement.process == self.process {
            *self.announcer.heard_itself.borrow_mut() = Some(now);
            self.announcer.own.borrow_mut().come_back(announcement.number);
            return;
        }
        if *announcement.node == *self.fleet.settings().node {
            // The process before this one, or a conflict of names, which the summaries show.
            return;
        }
        self.announcer.others.borrow_mut().hear(&announcement, now);
        let groups = self.announcer.parts.borrow().peers.clone();
        let followed = self.announcer.findings.borrow_mut().hear(&announcement, &groups);
        let mut status = self.fleet.status.lock();
        status.announcements += 1;
        status.hints += followed;
    }

    /// Tells others that this process leaves.
    pub(crate) fn say_goodbye(&self) {
        if self.announcer.parts.borrow().is_empty() {
            return;
        }
        let mut announcement = Announcement::new(&self.fleet.settings().node, &self.process);
        announcement.is_leaving = true;
        if let Some(session) = &*self.session.borrow() {
            // Nodes that miss this announcement notice the silence.
            let _ = session.announce(&announcement.encode());
        }
    }

    /// Returns true if this node does not hear itself, and so no other node either.
    fn is_isolated(&self) -> bool {
        let now = self.host.now();
        let is_heard = |heard: Duration| now.saturating_sub(heard) < SILENCE_MAX;
        self.session.borrow().is_none()
            || self.role.get() == Role::Retired
            || !self.announcer.heard_itself.borrow().is_some_and(is_heard)
    }

    /// Sets the equal share of each rate, which keys have that nobody asks much. Returns how many nodes have the rates.
    fn set_equal_shares(&self) -> Vec<NodeCount> {
        let now = self.host.now();
        let is_isolated = self.is_isolated();
        // Until an announcement is heard, the number of nodes is taken from summaries.
        let least = match *self.announcer.heard_itself.borrow() {
            None => u32::try_from(self.fleet.status.lock().nodes.len()).unwrap_or(u32::MAX),
            Some(_) => 0,
        };
        let parts = self.announcer.parts.borrow();
        let others = self.announcer.others.borrow();
        let set_equal = |rate: &Arc<SharedRate>| {
            let count = others.count(rate.name(), now, least);
            rate.set_equal(count.all, count.away, !is_isolated);
            count
        };
        parts.rates.iter().map(set_equal).collect()
    }

    /// One round: takes the demand of this node, announces it, and computes shares.
    fn share(&self) {
        let now = self.host.now();
        // The time is noted even if nothing is shared, so that no demand counts as one of a long interval.
        let last = self.announcer.last_round.replace(Some(now));
        let interval = last.map_or(ANNOUNCE_INTERVAL, |last| now.saturating_sub(last));
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1);
        let parts = self.announcer.parts.borrow().clone();
        if parts.is_empty() {
            return;
        }
        let mut announcement = Announcement::new(&self.fleet.settings().node, &self.process);
        let is_isolated = self.is_isolated();
        self.announcer.others.borrow_mut().forget(now, is_isolated);
        let counts = self.set_equal_shares();
        let others = self.announcer.others.borrow();
        self.announcer.findings.borrow_mut().retain(|node| others.is_known(node));
        let keys_max = KEYS_OF_RATE_MAX.min(KEYS_MAX / parts.rates.len().clamp(1, RATES_MAX));
        let mut states = Vec::new();
        let mut demands = Demands::new();
        let none = HashMap::new();
        for (nth, (rate, count)) in parts.rates.iter().zip(counts).enumerate() {
            self.note_count(rate.name(), count);
            let demand = rate.take_demand(interval_ms);
            let keys: HashSet<u64> = demand.iter().map(|(key, _)| *key).collect();
            let least = rate.rate() / (ANNOUNCED_PART * u64::from(count.all));
            let (own, unannounced) = announced_demand(demand, least, keys_max);
            let is_shared = !is_isolated && nth < RATES_MAX;
            if is_shared {
                let own = self.announcer.own.borrow();
                let known_values = own.confirmed_demand.get(rate.name()).unwrap_or(&none);
                let asked = OwnKeys { keys: &keys, announced: known_values, unannounced: &unannounced };
                let shares = others.shares(rate.name(), rate.rate(), &asked, count, now);
                rate.set_shares(|key| shares.get(&key).copied(), self.host.millis() + SHARE_TIME_MS);
            } else {
                rate.set_shares(|_| None, 0);
            }
            states.push((rate.name().to_owned(), rate.state()));
            if nth < RATES_MAX {
                demands.insert(rate.name().to_owned(), own.iter().copied().collect());
                announcement.rates.insert(rate.name().to_owned(), own);
            }
        }
        drop(others);
        self.fleet.status.lock().rates = states.into_iter().collect();
        if self.role.get() == Role::Active {
            announcement.peers = announced(&parts.peers);
            announcement.number = self.announcer.own.borrow_mut().send(demands);
            self.announce(announcement);
        }
    }

    fn announce(&self, mut announcement: Announcement) {
        let mut text = announcement.encode();
        if text.len() > ANNOUNCEMENT_SIZE_MAX {
            announcement.peers.clear();
            text = announcement.encode();
        }
        let session = self.session.borrow().clone();
        if let Some(session) = session
            && let Err(error @ EngineError::Refused(_)) = session.announce(&text)
        {
            let message = format_args!("announcements cannot be published: {error}; rates have equal shares");
            self.log_some(Level::Error, "announce", message);
        }
    }

    /// Remembers how many nodes have a rate, for a start without the engine.
    fn note_count(&self, rate: &str, count: NodeCount) {
        let mut state = self.state.borrow_mut();
        let Some(state) = &mut *state else { return };
        if state.nodes.get(rate) != Some(&count.all) {
            state.nodes.insert(rate.to_owned(), count.all);
            self.is_changed.set(true);
        }
        if state.nodes.len() > RATES_MAX {
            let parts = self.announcer.parts.borrow();
            state.nodes.retain(|name, _| parts.rates.iter().any(|rate| rate.name() == name));
        }
    }
}

/// Demand to announce: of keys for which an equal share may not be enough, those that are asked most; and those that are left over.
fn announced_demand(
    mut demand: Vec<(u64, u64)>,
    least: u64,
    keys_max: usize,
) -> (Vec<(u64, u64)>, HashSet<u64>) {
    demand.retain(|(_, demand)| *demand > least);
    demand.sort_unstable_by_key(|(key, demand)| (std::cmp::Reverse(*demand), *key));
    let left_over = demand.iter().skip(keys_max).map(|(key, _)| *key).collect();
    demand.truncate(keys_max);
    (demand, left_over)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busiest_keys_are_announced() {
        let demand = vec![(1, 10), (2, 500), (3, 11), (4, 500), (5, 12)];
        assert_eq!(
            announced_demand(demand.clone(), 10, 3),
            (vec![(2, 500), (4, 500), (5, 12)], HashSet::from([3]))
        );
        assert_eq!(announced_demand(demand, 500, 3), Default::default());
    }
}
