//! Writes of tags.

use super::{Elb, TAGS_AT_ONCE, write};
use crate::cloud::CloudError;
use crate::cloud::aws::client::convert::tag_list;
use crate::cloud::aws::client::way::Way;
use crate::cloud::aws::names::Tags;

impl Elb {
    /// Sets tags of objects.
    pub async fn add_tags(
        &self,
        way: Way<'_>,
        arns: &[String],
        tags: &Tags,
    ) -> Result<(), CloudError> {
        for some in arns.chunks(TAGS_AT_ONCE) {
            let request = self.client.add_tags();
            let request = request.set_resource_arns(Some(some.to_vec()));
            let request = request.set_tags(Some(tag_list(tags)));
            write(way, "elasticloadbalancing:AddTags", request.send()).await?;
        }
        Ok(())
    }

    /// Removes tags of objects.
    pub async fn remove_tags(
        &self,
        way: Way<'_>,
        arns: &[String],
        keys: &[String],
    ) -> Result<(), CloudError> {
        for some in arns.chunks(TAGS_AT_ONCE) {
            let request = self.client.remove_tags();
            let request = request.set_resource_arns(Some(some.to_vec()));
            let request = request.set_tag_keys(Some(keys.to_vec()));
            write(way, "elasticloadbalancing:RemoveTags", request.send()).await?;
        }
        Ok(())
    }
}
