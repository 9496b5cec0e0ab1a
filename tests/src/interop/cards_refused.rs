//! Cards that cannot be opened: the error is one line that names the missing step, and the card is
//! left as it was.

use std::io;

use crate::interop::card::{Card, E1000E, VIRTIO};
use crate::interop::case::{CASE_TIMEOUT, failure};
use crate::interop::testbed::Testbed;

/// A missing step: how to take it away and give it back, by commands of the guest, and what the
/// error says of it.
struct Step {
    card: Card,
    expected: &'static [&'static str],
    take: String,
    give: String,
    /// Options of the program.
    options: &'static str,
    /// Returns the command line that runs this one.
    run: fn(&str) -> String,
}

impl Step {
    /// The card is refused with an error that has these parts.
    fn refuses(card: Card, expected: &'static [&str]) -> Self {
        let nothing = || "true".to_owned();
        let (take, give) = (nothing(), nothing());
        Self { card, expected, take, give, options: "", run: str::to_owned }
    }

    /// Takes the step away before, and gives it back.
    fn between(self, take: impl Into<String>, give: impl Into<String>) -> Self {
        Self { take: take.into(), give: give.into(), ..self }
    }
}

/// Lets a user of the guest have the groups of VFIO, or takes them back.
fn own_vfio(user: &str) -> String {
    format!("chown {user} /dev/vfio/[0-9]*")
}

/// A command line that runs this one as a user without rights.
fn as_user(command: &str) -> String {
    format!("su -s /bin/sh user -c '{command}'")
}

/// As [`as_user`], with little memory that can be locked.
fn as_user_with_little_memory(command: &str) -> String {
    format!("ulimit -l 64; {}", as_user(command))
}

/// Returns the steps that are taken away, of two cards that are bound to vfio-pci.
fn steps() -> Vec<Step> {
    let (virtio, other) = (&VIRTIO.bdf(), &E1000E.bdf());
    let unbind = |bdf: &str| format!("echo {bdf} >/sys/bus/pci/devices/{bdf}/driver/unbind");
    let bind = |bdf: &str| format!("echo {bdf} >/sys/bus/pci/drivers_probe");
    let driver_override = |bdf: &str, driver: &str| {
        format!("echo {driver} >/sys/bus/pci/devices/{bdf}/driver_override")
    };
    let plug_in = "$(find / -xdev -name 'librte_net_e1000.so*' | grep pmds)";
    let moved = |from: &str, to: &str| format!("mv /dev/vfio/{from} /dev/vfio/{to}");
    vec![
        Step::refuses(E1000E, &["bound to no kernel driver", "driverctl set-override"])
            .between(unbind(other), bind(other)),
        Step::refuses(VIRTIO, &["the kernel's driver virtio-pci", "loses the interface eth"])
            .between(
                [driver_override(virtio, ""), unbind(virtio), bind(virtio)].join("; "),
                [driver_override(virtio, "vfio-pci"), unbind(virtio), bind(virtio)].join("; "),
            ),
        Step::refuses(E1000E, &["there is no /dev/vfio/vfio"])
            .between(moved("vfio", "away"), moved("away", "vfio")),
        Step::refuses(E1000E, &["without hugepages", "sysctl vm.nr_hugepages="]).between(
            "cp /proc/sys/vm/nr_hugepages /tmp; echo 0 >/proc/sys/vm/nr_hugepages",
            "cat /tmp/nr_hugepages >/proc/sys/vm/nr_hugepages",
        ),
        Step::refuses(E1000E, &["no poll-mode driver", "librte-net-e1000-23"]).between(
            format!(
                "mkdir /tmp/away; for i in {plug_in}; do dirname $i >/tmp/where; \
                 mv $i /tmp/away; done"
            ),
            "mv /tmp/away/* $(cat /tmp/where)/; rmdir /tmp/away",
        ),
        Step {
            run: as_user,
            ..Step::refuses(E1000E, &["opened: Permission denied", "chown USER /dev/vfio/"])
        },
        Step {
            run: as_user_with_little_memory,
            ..Step::refuses(E1000E, &["may lock 64 KiB of memory", "ulimit -l unlimited"])
        }
        .between(own_vfio("user"), own_vfio("0")),
        Step {
            options: "--shards 2",
            ..Step::refuses(VIRTIO, &["2 queues were requested, the device has at most 1"])
        },
    ]
}

/// Takes each step away, and expects the card to be refused for it; then while another process uses
/// the card, one of a user who has no right but to the card's group.
///
/// # Errors
/// A card that was opened, another error, or more than a line.
pub(super) fn refuse_cards(testbed: &Testbed) -> io::Result<()> {
    testbed
        .guest
        .run_ok("echo user:x:1000:1000::/:/bin/sh >/etc/passwd; echo user:x:1000: >/etc/group")?;
    for step in steps() {
        testbed.guest.run_ok(&step.take)?;
        let outcome = expect_refusal(testbed, &step);
        testbed.guest.run_ok(&step.give)?;
        outcome?;
    }
    testbed.guest.run_ok(&own_vfio("user"))?;
    let outcome = refuse_card_in_use(testbed);
    // By its number: the guest has no other name than the user's.
    testbed.guest.run_ok(&own_vfio("0"))?;
    outcome
}

/// Expects a card to be refused while a user without rights serves clients over it.
fn refuse_card_in_use(testbed: &Testbed) -> io::Result<()> {
    let user = testbed.guest.start(&as_user(&server(testbed, E1000E)))?;
    user.wait_for("waiting for clients", CASE_TIMEOUT)?;
    let in_use = Step::refuses(E1000E, &["in use by process", "(iwping)"]);
    let outcome = expect_refusal(testbed, &in_use);
    user.kill()?;
    let _ = user.finish(CASE_TIMEOUT);
    outcome
}

/// Expects a card to be refused in a guest whose IOMMU is off, where vfio-pci does not take it.
///
/// # Errors
/// As [`refuse_cards`].
pub(super) fn refuse_without_iommu(testbed: &mut Testbed) -> io::Result<String> {
    let parts = &["bound to no kernel driver", "turn the IOMMU on, which is off"];
    expect_refusal(testbed, &Step::refuses(E1000E, parts))?;
    Ok("refused".into())
}

/// The command line of a server over a card.
fn server(testbed: &Testbed, card: Card) -> String {
    format!("iwping server --dev pci:{} --ip {}/24", card.bdf(), testbed.card_addr())
}

fn expect_refusal(testbed: &Testbed, step: &Step) -> io::Result<()> {
    let Step { card, expected, options, run, .. } = step;
    let bdf = card.bdf();
    let driver = format!("readlink /sys/bus/pci/devices/{bdf}/driver || true");
    let before = testbed.guest.run_ok(&driver)?;
    let command = format!("{} {options}", server(testbed, *card));
    let result = testbed.guest.run(&run(&command), CASE_TIMEOUT)?;
    let output = result.output.trim();
    let is_right = result.code == Some(1)
        && output.lines().count() == 1
        && output.starts_with(&format!("iwping: pci:{bdf}: "))
        && expected.iter().all(|part| output.contains(part));
    if !is_right {
        return Err(failure(format!("{expected:?} expected: {:?}: {output}", result.code)));
    }
    if testbed.guest.run_ok(&driver)? != before {
        return Err(failure(format!("{expected:?}: the card's binding has changed")));
    }
    Ok(())
}
