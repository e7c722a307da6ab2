{{/* Base of all names: the release, with the chart's name unless the release has it. */}}
{{- define "onehop.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "onehop.controller.name" -}}
{{ include "onehop.fullname" . }}-controller
{{- end -}}

{{- define "onehop.webhook.name" -}}
{{ include "onehop.fullname" . }}-webhook
{{- end -}}

{{- define "onehop.agent.name" -}}
{{ include "onehop.fullname" . }}-node-agent
{{- end -}}

{{- define "onehop.installId" -}}
{{ default (printf "%s-%s" .Values.clusterName .Values.provider) .Values.installId }}
{{- end -}}

{{/* Classes that are claimed beside the provider's own, one a line: the value is a name or a list. */}}
{{- define "onehop.classes" -}}
{{- if kindIs "string" .Values.loadBalancerClass -}}
{{ .Values.loadBalancerClass }}
{{- else -}}
{{ join "\n" .Values.loadBalancerClass }}
{{- end -}}
{{- end -}}

{{/* A map as name=value pairs with commas, in the order of the names. */}}
{{- define "onehop.pairs" -}}
{{- $pairs := list -}}
{{- range $name, $value := . -}}
{{- $pairs = append $pairs (printf "%s=%v" $name $value) -}}
{{- end -}}
{{ join "," $pairs }}
{{- end -}}

{{/* Reference of an image. Takes the root and an image's values. */}}
{{- define "onehop.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{/* What selects pods; must never change between versions. Takes the root and a component. */}}
{{- define "onehop.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "onehop.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{ include "onehop.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .root.Values.additionalLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "onehop.controller.serviceAccount" -}}
{{- with .Values.serviceAccount -}}
{{- if .create -}}
{{- default (include "onehop.controller.name" $) .name -}}
{{- else -}}
{{- default "default" .name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "onehop.agent.serviceAccount" -}}
{{- with .Values.agent.serviceAccount -}}
{{- if .create -}}
{{- default (include "onehop.agent.name" $) .name -}}
{{- else -}}
{{- default "default" .name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Port of the agents' metrics, by the way to run. */}}
{{- define "onehop.agent.metricsPort" -}}
{{ ternary 10249 10349 (eq .Values.agent.mode "replace") }}
{{- end -}}

{{/* Whether the agents' metrics answer on addresses of the nodes, too: then scrapers are reviewed (S-300). */}}
{{- define "onehop.agent.metricsExposed" -}}
{{- with .Values.agent -}}
{{- if .metricsBindAddresses -}}
{{- range .metricsBindAddresses -}}
{{- if not (or (hasPrefix "127." .) (hasPrefix "[::1]:" .)) -}}true{{- end -}}
{{- end -}}
{{- else if .podMonitor.enabled -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* How metrics are scraped. Takes the values of the Secret with the token, and the name of the chart's own. */}}
{{- define "onehop.scraped" -}}
scheme: https
# Each program makes its own certificate, for which nobody vouches.
tlsConfig:
  insecureSkipVerify: true
authorization:
  credentials:
    name: {{ default .reader .secret.name }}
    key: {{ .secret.key }}
{{- end -}}

{{/* An account that may read metrics and nothing else, and its token. Takes part, name and namespace. */}}
{{- define "onehop.reader" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
  labels:
    {{- include "onehop.labels" .part | nindent 4 }}
# No pod runs with it.
automountServiceAccountToken: false
---
# The cluster puts the token in: it is in no template, and no rendering replaces it.
apiVersion: v1
kind: Secret
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
  labels:
    {{- include "onehop.labels" .part | nindent 4 }}
  annotations:
    kubernetes.io/service-account.name: {{ .name }}
type: kubernetes.io/service-account-token
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ .name }}
  labels:
    {{- include "onehop.labels" .part | nindent 4 }}
rules:
  - nonResourceURLs: [/metrics]
    verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "onehop.labels" .part | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .namespace }}
{{- end -}}

{{/* Name of that account for the agents. */}}
{{- define "onehop.agent.reader" -}}
{{ include "onehop.agent.name" . }}-metrics-reader
{{- end -}}

{{/* Who this install is: arguments that the controller and the check before an uninstall share. */}}
{{- define "onehop.controller.identity" -}}
- --provider={{ .Values.provider }}
- --cluster-name={{ .Values.clusterName }}
{{- with .Values.installId }}
- --install-id={{ . }}
{{- end }}
{{- end -}}

{{/* What both of the controller's containers are allowed. */}}
{{- define "onehop.controller.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "onehop.controller.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Annotations of what is there to clean up after an uninstall only. Takes the weight. */}}
{{- define "onehop.cleanUp.hook" -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* Rest of a pod's spec that does something around an uninstall. Takes the root, the container's name and the flag. */}}
{{- define "onehop.uninstall.pod" -}}
{{- $values := .root.Values -}}
restartPolicy: Never
{{- if $values.hostNetwork }}
hostNetwork: true
{{- end }}
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "onehop.controller.podSecurity" .root | nindent 2 }}
containers:
  - name: {{ .container }}
    image: {{ include "onehop.image" (dict "root" .root "image" $values.image) | quote }}
    imagePullPolicy: {{ $values.image.pullPolicy }}
    args:
      {{- include "onehop.controller.identity" .root | nindent 6 }}
      - --leader-elect-resource-namespace={{ .root.Release.Namespace }}
      - {{ .flag }}
    {{- with $values.env }}
    env:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $values.envFrom }}
    envFrom:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    # What it found is the pod's message, too.
    terminationMessagePolicy: FallbackToLogsOnError
    securityContext:
      {{- include "onehop.controller.security" .root | nindent 6 }}
    {{- with $values.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What the schema cannot say: values that are needed because of other values. */}}
{{- define "onehop.check" -}}
{{- if not .Values.clusterName -}}
{{- fail "clusterName is required: give the name of this cluster (--set clusterName=NAME)." -}}
{{- end -}}
{{- if and (eq .Values.provider "local") (not .Values.local.endpoint) -}}
{{- fail "local.endpoint is required with provider local: give the URL of the local cloud's API." -}}
{{- end -}}
{{- if and (eq .Values.provider "aws") (not .Values.vpcId) -}}
{{- fail "vpcId is required with provider aws: give the id of the cluster's VPC (vpc-…)." -}}
{{- end -}}
{{- if and .Values.takeOver (eq .Values.provider "azure") (not .Values.azure.serviceControllerDisabled) -}}
{{- fail "azure.serviceControllerDisabled is required with takeOver: run cloud-provider-azure with --controllers=*,-service-lb-controller, or not at all, and say so." -}}
{{- end -}}
{{- if and .Values.takeOver (ne .Values.provider "azure") (not .Values.lbcServiceControllerDisabled) -}}
{{- fail "lbcServiceControllerDisabled is required with takeOver: run aws-load-balancer-controller with feature gate EnableServiceController=false, or not at all, and say so." -}}
{{- end -}}
{{- if and (eq .Values.provider "azure") (not .Values.azure.cloudConfigSecret) -}}
{{- range $key := list "subscriptionId" "location" "resourceGroup" "vnet" "subnet" "tenantId" "clientId" -}}
{{- if not (index $.Values.azure $key) -}}
{{- fail (printf "azure.%s is required with provider azure, unless azure.cloudConfigSecret names a Secret with the cloud config." $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.agent.enabled (eq .Values.agent.mode "replace") (not .Values.agent.apiServer.host) -}}
{{- fail "agent.apiServer.host is required with agent.mode replace: give an address of the API server that needs no Service." -}}
{{- end -}}
{{- if and (eq .Values.agent.detectLocalMode "BridgeInterface") (not .Values.agent.podBridgeInterface) -}}
{{- fail "agent.podBridgeInterface is required with agent.detectLocalMode BridgeInterface: give the name of the bridge of the node's pods." -}}
{{- end -}}
{{- if and (eq .Values.agent.detectLocalMode "InterfaceNamePrefix") (not .Values.agent.podInterfaceNamePrefix) -}}
{{- fail "agent.podInterfaceNamePrefix is required with agent.detectLocalMode InterfaceNamePrefix: tell how the names of interfaces to the node's pods begin." -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.name is required with serviceAccount.create false: the rights of the controller are bound to it." -}}
{{- end -}}
{{- if and .Values.agent.enabled (not .Values.agent.serviceAccount.create) (not .Values.agent.serviceAccount.name) -}}
{{- fail "agent.serviceAccount.name is required with agent.serviceAccount.create false: the rights of the agent are bound to it." -}}
{{- end -}}
{{- if and .Values.agent.enabled .Values.agent.podMonitor.enabled (not (include "onehop.agent.metricsExposed" .)) -}}
{{- fail "agent.metricsBindAddresses has loopback only, which no Prometheus reaches: with agent.podMonitor.enabled leave it empty, or add an address of the nodes." -}}
{{- end -}}
{{- if and .Values.prometheusRule.enabled (not .Values.serviceMonitor.enabled) -}}
{{- fail "serviceMonitor.enabled is required with prometheusRule.enabled: the alerts are about what it has scraped." -}}
{{- end -}}
{{- if and .Values.prometheusRule.enabled .Values.agent.enabled (not .Values.agent.podMonitor.enabled) -}}
{{- fail "agent.podMonitor.enabled is required with prometheusRule.enabled: the alerts are about what it has scraped." -}}
{{- end -}}
{{- end -}}

{{/* Whether the controller's identity is a workload identity: the webhook of Azure then gives the pod its token. */}}
{{- define "onehop.azure.workloadIdentity" -}}
{{- if and (eq .Values.provider "azure") .Values.azure.clientId -}}true{{- end -}}
{{- end -}}

{{/* Arguments of provider azure. Takes its values. */}}
{{- define "onehop.azure.args" -}}
- --azure-default-target={{ .defaultTarget }}
- --azure-drain-seconds={{ int .drainSeconds }}
{{- if .cloudConfigSecret }}
- --azure-config=/etc/kubernetes/azure/cloud-config
{{- end }}
{{- range $flag, $key := dict "azure-subscription-id" "subscriptionId" "azure-location" "location" "azure-resource-group" "resourceGroup" "azure-load-balancer" "loadBalancer" "azure-node-resource-group" "nodeResourceGroup" "azure-vnet" "vnet" "azure-vnet-resource-group" "vnetResourceGroup" "azure-subnet" "subnet" "azure-security-group" "securityGroup" "azure-security-group-resource-group" "securityGroupResourceGroup" "azure-pod-security-group" "podSecurityGroup" "azure-pod-security-group-resource-group" "podSecurityGroupResourceGroup" "azure-tenant-id" "tenantId" "azure-client-id" "clientId" }}
{{- with index $ $key }}
- --{{ $flag }}={{ . }}
{{- end }}
{{- end }}
{{- if .shareLoadBalancer }}
- --azure-share-load-balancer
{{- end }}
{{- if .serviceControllerDisabled }}
- --azure-service-controller-disabled
{{- end }}
{{- if .clientId }}
# Where the webhook of workload identity puts the token.
- --azure-federated-token-file=/var/run/secrets/azure/tokens/azure-identity-token
{{- end }}
{{- with .podPrefixes }}
- --azure-pod-prefixes={{ join "," . }}
{{- end }}
{{- range $key, $value := .tags }}
- --azure-tags={{ $key }}={{ $value }}
{{- end }}
{{- end -}}
