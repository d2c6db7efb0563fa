//! What laggs are called: `lagg`, so that ifconfig(8) finds them by the name that it knows, unless
//! the kernel's own if_lagg(4) has it.

use kpi::context::MaySleep;
use kpi::log::{self, Level};
use kpi::tunable;

/// The name of laggs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Naming {
    /// `lagg`. The module if_lagg cannot be loaded then.
    Lagg,
    /// `iblagg`, beside those of if_lagg(4).
    Iblagg,
    /// There are none.
    Off,
}

/// What the tunable says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Wish {
    Auto,
    Lagg,
    Iblagg,
    Off,
}

impl Wish {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Auto, "auto"), (Self::Lagg, "lagg"), (Self::Iblagg, "iblagg"), (Self::Off, "off")];

    fn read() -> Self {
        let mut buffer = [0; tunable::TEXT_BYTES];
        let Some(text) = tunable::text(c"hw.ipoib.lagg", &mut buffer) else { return Self::Auto };
        let known = Self::ALL.iter().find(|(_, name)| *name == text);
        known.map(|(wish, _)| *wish).unwrap_or_else(|| {
            let text = format_args!(
                "ipoib_rs: hw.ipoib.lagg: \"{text}\" is none of auto, lagg, iblagg, off"
            );
            log::line(Level::Warning, text);
            Self::Auto
        })
    }
}

impl Naming {
    /// As the tunable `hw.ipoib.lagg` says, and as what is loaded already allows.
    pub(crate) fn choose(may_sleep: &MaySleep) -> Self {
        let has_stock = kpi::module::is_loaded(c"if_lagg", may_sleep);
        match (Wish::read(), has_stock) {
            (Wish::Off, _) => Self::Off,
            (Wish::Iblagg, _) | (Wish::Auto, true) => Self::Iblagg,
            (Wish::Auto | Wish::Lagg, false) => Self::Lagg,
            (Wish::Lagg, true) => {
                let text = "ipoib_rs: hw.ipoib.lagg=lagg, but if_lagg is loaded: iblagg";
                log::line(Level::Warning, format_args!("{text}"));
                Self::Iblagg
            }
        }
    }

    /// What the sysctl of that name shows.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Lagg => "lagg",
            Self::Iblagg => "iblagg",
            Self::Off => "off",
        }
    }

    /// Takes the names of the module that would bring laggs of its own: ifconfig(8) loads nothing
    /// when it finds them, and nobody else can. It is the last thing of loading.
    ///
    /// # Errors
    ///
    /// They are taken.
    pub(crate) fn claim(self, may_sleep: &MaySleep) -> Result<(), kpi::errno::Errno> {
        match self {
            Self::Lagg => kpi::module::claim(&[c"lagg", c"if_lagg"], may_sleep),
            Self::Iblagg => kpi::module::claim(&[c"iblagg"], may_sleep),
            Self::Off => Ok(()),
        }
    }
}

/// What is said when somebody wants another lagg.
pub(super) const ETHERNET_REFUSED: &str = "laggtype infiniband only; for Ethernet, \
     kldload if_lagg before ipoib_rs, or set hw.ipoib.lagg=iblagg";
