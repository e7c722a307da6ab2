//! One handler per verb and resource: convert, call the engine, convert back.

use std::net::SocketAddr;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use super::error::Failure;
use super::wire::{
    GroupBody, GroupView, Items, LbBody, LbView, ListenerBody, ListenerView, TargetsBody,
    TargetsView,
};
use crate::cloud::Cloud;
use crate::engine::{ApiError, GroupId, LbId, ListenerKey, Profile, Tags, TargetStatus};

type Answer<T> = Result<Json<T>, Failure>;
type Pairs = Query<Vec<(String, String)>>;

/// Reads a body; the message names the field and the place.
pub(super) fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::invalid("body", error.to_string()))
}

fn key(headers: &HeaderMap) -> Result<String, ApiError> {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok());
    key.filter(|key| !key.is_empty())
        .map(str::to_owned)
        .ok_or(ApiError::KeyMissing)
}

/// The tags to list by, each as `tag=key=value`.
fn tags(pairs: &[(String, String)]) -> Result<Tags, ApiError> {
    let tag = |(name, value): &(String, String)| match (name.as_str(), value.split_once('=')) {
        ("tag", Some((key, value))) => Ok((key.to_owned(), value.to_owned())),
        ("tag", None) => Err(ApiError::invalid(
            "tag",
            format!("{value:?} is not key=value"),
        )),
        _ => Err(ApiError::invalid(
            name.as_str(),
            "is no parameter of a list: use tag=key=value",
        )),
    };
    pairs.iter().map(tag).collect()
}

fn listener_key(text: &str) -> Result<ListenerKey, ApiError> {
    text.parse()
        .map_err(|message: String| ApiError::invalid("listener", message))
}

fn profile(cloud: &Cloud) -> Profile {
    cloud.look(|engine| engine.profile().clone())
}

// `/v1/loadbalancers`

pub(super) async fn create_lb(
    State(cloud): State<Cloud>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<LbView>), Failure> {
    let key = key(&headers)?;
    let spec = read::<LbBody>(&body)?.resolve(&profile(&cloud))?;
    let made = cloud.with(|engine, now| engine.create_lb(now, &key, spec))?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

pub(super) async fn list_lbs(
    State(cloud): State<Cloud>,
    Query(pairs): Pairs,
) -> Answer<Items<LbView>> {
    let tags = tags(&pairs)?;
    let found = cloud.with(|engine, now| engine.list_lbs(now, &tags))?;
    Ok(Json(Items {
        items: found.into_iter().map(LbView::from).collect(),
    }))
}

pub(super) async fn get_lb(State(cloud): State<Cloud>, Path(id): Path<LbId>) -> Answer<LbView> {
    Ok(Json(
        cloud.with(|engine, now| engine.get_lb(now, &id))?.into(),
    ))
}

pub(super) async fn update_lb(
    State(cloud): State<Cloud>,
    Path(id): Path<LbId>,
    body: Bytes,
) -> Answer<LbView> {
    let spec = read::<LbBody>(&body)?.resolve(&profile(&cloud))?;
    Ok(Json(
        cloud
            .with(|engine, now| engine.update_lb(now, &id, spec))?
            .into(),
    ))
}

pub(super) async fn delete_lb(
    State(cloud): State<Cloud>,
    Path(id): Path<LbId>,
) -> Result<StatusCode, Failure> {
    cloud.with(|engine, now| engine.delete_lb(now, &id))?;
    Ok(StatusCode::NO_CONTENT)
}

// `/v1/loadbalancers/{id}/listeners`

pub(super) async fn list_listeners(
    State(cloud): State<Cloud>,
    Path(id): Path<LbId>,
) -> Answer<Items<ListenerView>> {
    let lb = cloud.with(|engine, now| engine.get_lb(now, &id))?;
    Ok(Json(Items {
        items: LbView::from(lb).listeners,
    }))
}

pub(super) async fn get_listener(
    State(cloud): State<Cloud>,
    Path((id, listener)): Path<(LbId, String)>,
) -> Answer<ListenerView> {
    let key = listener_key(&listener)?;
    let group = cloud.with(|engine, now| engine.get_listener(now, &id, key))?;
    Ok(Json((key, group).into()))
}

pub(super) async fn put_listener(
    State(cloud): State<Cloud>,
    Path((id, listener)): Path<(LbId, String)>,
    body: Bytes,
) -> Answer<ListenerView> {
    let key = listener_key(&listener)?;
    let ListenerBody { group } = read(&body)?;
    let group = cloud.with(|engine, now| engine.put_listener(now, &id, key, &group))?;
    Ok(Json((key, group).into()))
}

pub(super) async fn delete_listener(
    State(cloud): State<Cloud>,
    Path((id, listener)): Path<(LbId, String)>,
) -> Result<StatusCode, Failure> {
    let key = listener_key(&listener)?;
    cloud.with(|engine, now| engine.delete_listener(now, &id, key))?;
    Ok(StatusCode::NO_CONTENT)
}

// `/v1/groups`

pub(super) async fn create_group(
    State(cloud): State<Cloud>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<GroupView>), Failure> {
    let key = key(&headers)?;
    let spec = read::<GroupBody>(&body)?.resolve(&profile(&cloud))?;
    let made = cloud.with(|engine, now| engine.create_group(now, &key, spec))?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

pub(super) async fn list_groups(
    State(cloud): State<Cloud>,
    Query(pairs): Pairs,
) -> Answer<Items<GroupView>> {
    let tags = tags(&pairs)?;
    let found = cloud.with(|engine, now| engine.list_groups(now, &tags))?;
    Ok(Json(Items {
        items: found.into_iter().map(GroupView::from).collect(),
    }))
}

pub(super) async fn get_group(
    State(cloud): State<Cloud>,
    Path(id): Path<GroupId>,
) -> Answer<GroupView> {
    Ok(Json(
        cloud.with(|engine, now| engine.get_group(now, &id))?.into(),
    ))
}

pub(super) async fn update_group(
    State(cloud): State<Cloud>,
    Path(id): Path<GroupId>,
    body: Bytes,
) -> Answer<GroupView> {
    let spec = read::<GroupBody>(&body)?.resolve(&profile(&cloud))?;
    Ok(Json(
        cloud
            .with(|engine, now| engine.update_group(now, &id, spec))?
            .into(),
    ))
}

pub(super) async fn delete_group(
    State(cloud): State<Cloud>,
    Path(id): Path<GroupId>,
) -> Result<StatusCode, Failure> {
    cloud.with(|engine, now| engine.delete_group(now, &id))?;
    Ok(StatusCode::NO_CONTENT)
}

// `/v1/groups/{id}/targets`

fn target_views(statuses: Vec<TargetStatus>) -> Json<TargetsView> {
    Json(TargetsView {
        targets: statuses.into_iter().map(Into::into).collect(),
    })
}

pub(super) async fn register(
    State(cloud): State<Cloud>,
    Path(id): Path<GroupId>,
    body: Bytes,
) -> Answer<TargetsView> {
    let targets = read::<TargetsBody>(&body)?.resolve()?;
    Ok(target_views(
        cloud.with(|engine, now| engine.register(now, &id, targets))?,
    ))
}

pub(super) async fn deregister(
    State(cloud): State<Cloud>,
    Path(id): Path<GroupId>,
    body: Bytes,
) -> Answer<TargetsView> {
    let targets = read::<TargetsBody>(&body)?.resolve()?;
    let targets: Vec<_> = targets.into_iter().map(|spec| spec.target).collect();
    Ok(target_views(cloud.with(|engine, now| {
        engine.deregister(now, &id, &targets)
    })?))
}

pub(super) async fn get_targets(
    State(cloud): State<Cloud>,
    Path(id): Path<GroupId>,
    Query(pairs): Pairs,
) -> Answer<TargetsView> {
    let asked: Vec<SocketAddr> = pairs.iter().map(asked_target).collect::<Result<_, _>>()?;
    Ok(target_views(
        cloud.with(|engine, now| engine.targets(now, &id, &asked))?,
    ))
}

fn asked_target((name, value): &(String, String)) -> Result<SocketAddr, ApiError> {
    let parsed = if name == "target" {
        value.parse().ok()
    } else {
        None
    };
    let problem = || ApiError::invalid(name.as_str(), "use target=address:port");
    parsed.ok_or_else(problem)
}
