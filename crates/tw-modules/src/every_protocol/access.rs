//! `allow`, `deny`: access by address (nginx: ngx_http_access_module, ngx_stream_access_module). Access phase, in every
//! protocol.
//!
//! The first rule that matches an address decides.

use std::net::IpAddr;
use std::sync::Arc;

use tw_conf::network::Network;
use tw_conf::{
    Args, ConfError, Contexts, Cx, Directive, HTTP, LIMIT_EXCEPT, LOCATION, MAIL, MAIL_SERVER, Node, SERVER,
    STREAM, STREAM_SERVER, record,
};
use tw_core::access_check::{AccessCheck, AccessDecision, AccessPlan, AccessStage};
use tw_core::load::Resolve;
use tw_core::module::{Protocol, Settings};
use tw_core::session::Session;
use tw_net::Addr;

const EVERYWHERE: Contexts =
    HTTP | SERVER | LOCATION | LIMIT_EXCEPT | STREAM | STREAM_SERVER | MAIL | MAIL_SERVER;

/// Verdict of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessVerdict {
    /// `allow`
    Allow,
    /// `deny`
    Deny,
}

/// Rules in their order, apart for each family. An address of a family without rules is not judged.
#[derive(Debug, Default)]
pub(crate) struct AccessRules {
    v4: Vec<Rule<u32>>,
    v6: Vec<Rule<u128>>,
    unix: Option<AccessVerdict>,
}

#[derive(Debug)]
struct Rule<Bits> {
    addr: Bits,
    mask: Bits,
    verdict: AccessVerdict,
}

impl AccessRules {
    /// Returns `true` if there are no rules.
    pub(crate) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty() && self.unix.is_none()
    }

    /// Takes in an `allow` or a `deny`.
    pub(crate) fn add(
        &mut self,
        verdict: AccessVerdict,
        node: &Node,
        cx: &mut Cx<'_>,
    ) -> Result<(), ConfError> {
        let word = node.arg(0)?;
        match &*word.bytes {
            b"all" => {
                self.v4.push(Rule { addr: 0, mask: 0, verdict });
                self.v6.push(Rule { addr: 0, mask: 0, verdict });
                self.unix.get_or_insert(verdict);
            }
            b"unix:" => {
                self.unix.get_or_insert(verdict);
            }
            text => {
                let network = Network::parse(text).ok_or_else(|| node.invalid_parameter(word))?;
                if network.has_low_bits {
                    cx.warn(word.span, format!("low address bits of {word} are meaningless"));
                }
                self.push(verdict, network.network);
            }
        }
        Ok(())
    }

    fn push(&mut self, verdict: AccessVerdict, network: Network) {
        let bits = u32::from(network.bits());
        match network.addr() {
            IpAddr::V4(addr) => {
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                self.v4.push(Rule { addr: addr.to_bits(), mask, verdict });
            }
            IpAddr::V6(addr) => {
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
                self.v6.push(Rule { addr: addr.to_bits(), mask, verdict });
            }
        }
    }

    /// Verdict of the first rule that `addr` falls under. An address like `::ffff:192.0.2.1` falls under the rules for
    /// IPv4 if there are any. O(rules), a nanosecond each.
    pub(crate) fn check(&self, addr: &Addr) -> Option<AccessVerdict> {
        let Some(addr) = addr.inet() else { return self.unix };
        let v6 = match addr.ip() {
            IpAddr::V4(addr) => return first(&self.v4, |rule| addr.to_bits() & rule.mask == rule.addr),
            IpAddr::V6(addr) => addr,
        };
        match v6.to_ipv4_mapped() {
            Some(addr) if !self.v4.is_empty() => {
                first(&self.v4, |rule| addr.to_bits() & rule.mask == rule.addr)
            }
            _ => first(&self.v6, |rule| v6.to_bits() & rule.mask == rule.addr),
        }
    }
}

fn first<Bits>(rules: &[Rule<Bits>], matches: impl Fn(&Rule<Bits>) -> bool) -> Option<AccessVerdict> {
    rules.iter().find(|rule| matches(rule)).map(|rule| rule.verdict)
}

/// Rules of one block; a block with rules has none of those around it.
pub(crate) struct Access {
    rules: Arc<AccessRules>,
}

impl<P: Protocol> Settings<P> for Access
where
    P::Plan: AccessPlan<P::Session>,
{
    type Raw = AccessRules;

    const DIRECTIVES: &'static [Directive<AccessRules>] = &[
        record::new("allow", "address | CIDR | unix: | all", EVERYWHERE, Args::exact(1))
            .doc("Lets a network or an address in. The first rule that a client falls under decides.")
            .set(|rules, node, cx| rules.add(AccessVerdict::Allow, node, cx)),
        record::new("deny", "address | CIDR | unix: | all", EVERYWHERE, Args::exact(1))
            .doc("Keeps a network or an address out. The first rule that a client falls under decides.")
            .set(|rules, node, cx| rules.add(AccessVerdict::Deny, node, cx)),
    ];

    fn resolve(rules: AccessRules, outer: Option<&Self>, _: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        let rules = match outer {
            Some(outer) if rules.is_empty() => outer.rules.clone(),
            _ => Arc::new(rules),
        };
        Ok(Self { rules })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut P::Plan) {
        if !self.rules.is_empty() {
            plan.add_access_check(AccessStage::Access, self.clone());
        }
    }
}

impl<S: Session> AccessCheck<S> for Access {
    fn check(&self, s: &mut S) -> AccessDecision {
        match self.rules.check(s.client_addr()) {
            None => AccessDecision::Pass,
            Some(AccessVerdict::Allow) => AccessDecision::Granted,
            Some(AccessVerdict::Deny) => AccessDecision::Forbidden("access forbidden by rule"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn rules(text: &str) -> AccessRules {
        let mut rules = AccessRules::default();
        for rule in text.split(' ') {
            let (sign, network) = rule.split_at(1);
            let verdict = if sign == "+" { AccessVerdict::Allow } else { AccessVerdict::Deny };
            rules.push(verdict, Network::parse(network.as_bytes()).unwrap().network);
        }
        rules
    }

    #[test]
    fn the_first_rule_decides() {
        let allow = Some(AccessVerdict::Allow);
        let deny = Some(AccessVerdict::Deny);
        for (text, addr, expected) in [
            ("+192.0.2.1 -192.0.2.0/24", "192.0.2.1", allow),
            ("+192.0.2.1 -192.0.2.0/24", "192.0.2.2", deny),
            ("+192.0.2.1 -192.0.2.0/24", "192.0.3.2", None),
            ("-192.0.2.0/24 +192.0.2.1", "192.0.2.1", deny),
            ("-0.0.0.0/0", "255.255.255.255", deny),
            ("-0.0.0.0/0", "::1", None),
            ("-0.0.0.0/0", "::ffff:192.0.2.1", deny),
            ("-::/0", "::ffff:192.0.2.1", deny),
            ("-::/0 +10.0.0.0/8", "::ffff:192.0.2.1", None),
            ("-::/0", "192.0.2.1", None),
            ("+2001:db8::/33 -::/0", "2001:db8:7fff::1", allow),
            ("+2001:db8::/33 -::/0", "2001:db8:8000::1", deny),
            ("+::1", "::1", allow),
        ] {
            let addr = Addr::Inet(SocketAddr::new(addr.parse().unwrap(), 1));
            assert_eq!(rules(text).check(&addr), expected, "{text} {addr}");
        }
    }

    #[test]
    fn a_unix_socket_has_one_rule() {
        let unix = Addr::Unix(None);
        assert_eq!(rules("-0.0.0.0/0").check(&unix), None);
        let rules = AccessRules { unix: Some(AccessVerdict::Deny), ..AccessRules::default() };
        assert_eq!(rules.check(&unix), Some(AccessVerdict::Deny));
    }
}
