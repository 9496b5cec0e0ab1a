//! Cards that cannot be opened: the error is one line that names the missing step, and the card is
//! left as it was.

use std::io;

use crate::interop::operation::{CASE_TIMEOUT, failure};
use crate::interop::testbed::{CARD_BDF, SECOND_CARD_BDF, Testbed};

/// A missing step: how to take it away and give it back, by commands of the guest, and what the
/// error says of it.
struct Step {
    bdf: &'static str,
    take: String,
    give: String,
    expected: &'static [&'static str],
}

/// Returns the steps that are taken away, of a virtio card and another, both bound to vfio-pci.
fn steps() -> Vec<Step> {
    let (virtio, other) = (CARD_BDF, SECOND_CARD_BDF);
    let unbind = |bdf: &str| format!("echo {bdf} >/sys/bus/pci/devices/{bdf}/driver/unbind");
    let bind = |bdf: &str| format!("echo {bdf} >/sys/bus/pci/drivers_probe");
    let driver_override = |bdf: &str, driver: &str| {
        format!("echo {driver} >/sys/bus/pci/devices/{bdf}/driver_override")
    };
    let plug_in = "$(find / -xdev -name 'librte_net_e1000.so*' | grep pmds)";
    let moved = |from: &str, to: &str| format!("mv /dev/vfio/{from} /dev/vfio/{to}");
    vec![
        Step {
            bdf: other,
            take: unbind(other),
            give: bind(other),
            expected: &["bound to no kernel driver", "driverctl set-override"],
        },
        Step {
            bdf: virtio,
            take: [driver_override(virtio, ""), unbind(virtio), bind(virtio)].join("; "),
            give: [driver_override(virtio, "vfio-pci"), unbind(virtio), bind(virtio)].join("; "),
            expected: &["the kernel's driver virtio-pci", "loses the interface eth"],
        },
        Step {
            bdf: other,
            take: moved("vfio", "away"),
            give: moved("away", "vfio"),
            expected: &["there is no /dev/vfio/vfio"],
        },
        Step {
            bdf: other,
            take: "cp /proc/sys/vm/nr_hugepages /tmp; echo 0 >/proc/sys/vm/nr_hugepages".into(),
            give: "cat /tmp/nr_hugepages >/proc/sys/vm/nr_hugepages".into(),
            expected: &["without hugepages", "sysctl vm.nr_hugepages="],
        },
        Step {
            bdf: other,
            take: format!(
                "mkdir /tmp/away; for i in {plug_in}; do dirname $i >/tmp/where; \
                 mv $i /tmp/away; done"
            ),
            give: "mv /tmp/away/* $(cat /tmp/where)/; rmdir /tmp/away".into(),
            expected: &["no poll-mode driver", "librte-net-e1000-23"],
        },
    ]
}

/// Takes each step away, and expects the card to be refused for it; then while another process uses
/// the card.
///
/// # Errors
/// A card that was opened, another error, or more than a line.
pub(super) fn refuse_cards(testbed: &Testbed) -> io::Result<()> {
    for step in steps() {
        testbed.guest.run_ok(&step.take)?;
        let outcome = expect_refusal(testbed, step.bdf, step.expected);
        testbed.guest.run_ok(&step.give)?;
        outcome?;
    }
    let user = testbed.guest.start(&server(testbed, SECOND_CARD_BDF))?;
    user.wait_for("waiting for clients", CASE_TIMEOUT)?;
    let outcome = expect_refusal(testbed, SECOND_CARD_BDF, &["in use by process", "(iwping)"]);
    user.kill()?;
    let _ = user.finish(CASE_TIMEOUT);
    outcome
}

/// The command line of a server over a card.
fn server(testbed: &Testbed, bdf: &str) -> String {
    format!("iwping server --dev pci:{bdf} --ip {}/24", testbed.card_addr())
}

fn expect_refusal(testbed: &Testbed, bdf: &str, parts: &[&str]) -> io::Result<()> {
    let driver = format!("readlink /sys/bus/pci/devices/{bdf}/driver || true");
    let before = testbed.guest.run_ok(&driver)?;
    let result = testbed.guest.run(&server(testbed, bdf), CASE_TIMEOUT)?;
    let output = result.output.trim();
    let is_right = result.code == Some(1)
        && output.lines().count() == 1
        && output.starts_with(&format!("iwping: pci:{bdf}: "))
        && parts.iter().all(|part| output.contains(part));
    if !is_right {
        return Err(failure(format!("{parts:?} expected: {:?}: {output}", result.code)));
    }
    if testbed.guest.run_ok(&driver)? != before {
        return Err(failure(format!("{parts:?}: the card's binding has changed")));
    }
    Ok(())
}
