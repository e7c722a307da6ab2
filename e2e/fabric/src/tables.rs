//! Packet rules of the router and of the CNI stand-in. Still to come: for now every packet passes.
use crate::netns::Netns;
use crate::{Result, drops::DropReason};
use std::net::Ipv4Addr;
pub(crate) struct RouterTable;
impl RouterTable {
    pub(crate) fn create(_ns: &Netns) -> Result<Self> {
        Ok(Self)
    }
    pub(crate) fn drop_count(&self, _r: DropReason) -> Result<u64> {
        Ok(0)
    }
    pub(crate) fn add_lb_address(&self, _a: Ipv4Addr) -> Result<()> {
        Ok(())
    }
    pub(crate) fn remove_lb_address(&self, _a: Ipv4Addr) -> Result<()> {
        Ok(())
    }
    pub(crate) fn set_source_check(&self, _p: &str, _on: bool) -> Result<()> {
        Ok(())
    }
    pub(crate) fn add_lb_port(&self, _p: &str, _m: u32) -> Result<()> {
        Ok(())
    }
    pub(crate) fn own(&self, _a: Ipv4Addr, _p: &str, _l: Option<&str>) -> Result<()> {
        Ok(())
    }
    pub(crate) fn disown(&self, _a: Ipv4Addr, _p: &str) -> Result<()> {
        Ok(())
    }
}
pub(crate) fn create_cni(_ns: &Netns, _p: &str, _m: u32) -> Result<()> {
    Ok(())
}
