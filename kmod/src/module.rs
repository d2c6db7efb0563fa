//! The module from loading to unloading.

use alloc::boxed::Box;
use core::fmt::Write;

use kpi::client::{Client, Registration};
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::log::{self, Level};
use kpi::owned::{try_arc, try_box};
use kpi::sysctl::{Label, Output, Root, Tree};

use crate::adapters::Adapters;
use crate::lagg::{Laggs, Naming};
use crate::settings::Settings;

/// All that the module has. Dropping it takes it out of the kernel again.
#[derive(Debug)]
pub struct Module {
    /// Their ports are given back before these go.
    _laggs: Option<Laggs>,
    /// Interfaces come and go with it.
    _registration: Registration,
    /// `hw.ipoib`
    _tunables: Tree,
}

impl Module {
    pub(crate) fn load(may_sleep: &mut MaySleep) -> Result<Self, Errno> {
        // Both would answer for every port. Events of a port can be shared, addresses cannot.
        if kpi::module::is_loaded(c"ipoib", may_sleep) {
            log::line(Level::Error, format_args!("ipoib_rs: ipoib is loaded: kldunload ipoib"));
            return Err(Errno::EEXIST);
        }
        let settings = Settings::read();
        let naming = Naming::choose(may_sleep);
        let mut tunables = settings.publish(may_sleep)?;
        let label =
            Label { name: c"lagg", description: c"what laggs are called: lagg, iblagg, off" };
        let show = move |out: &mut Output, _: &mut MaySleep| out.write_str(naming.as_str());
        tunables.add_text(Tree::TOP, label, show, may_sleep)?;
        let label = Label { name: c"ipoib", description: c"IP over InfiniBand: interfaces" };
        let interfaces = try_arc(Tree::new(Root::NetLink, label, may_sleep)?)?;
        log::line(Level::Info, format_args!("ipoib_rs {}", env!("CARGO_PKG_VERSION")));
        let laggs = Laggs::new(naming, &interfaces, may_sleep)?;
        let adapters: Box<dyn Client> = try_box(Adapters::new(settings, interfaces)?)?;
        let registration = Registration::new(adapters, may_sleep)?;
        naming.claim(may_sleep)?;
        Ok(Self { _laggs: laggs, _registration: registration, _tunables: tunables })
    }
}
