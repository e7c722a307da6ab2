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

{{- define "onehop.agent.name" -}}
{{ include "onehop.fullname" . }}-node-agent
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

{{/* What the schema cannot say: values that are needed because of other values. */}}
{{- define "onehop.check" -}}
{{- if not .Values.clusterName -}}
{{- fail "clusterName is required: give the name of this cluster (--set clusterName=NAME)." -}}
{{- end -}}
{{- if and (eq .Values.provider "local") (not .Values.local.endpoint) -}}
{{- fail "local.endpoint is required with provider local: give the URL of the local cloud's API." -}}
{{- end -}}
{{- if and (eq .Values.provider "aws") (not .Values.aws.vpcId) -}}
{{- fail "aws.vpcId is required with provider aws: give the VPC of the cluster." -}}
{{- end -}}
{{- if and (eq .Values.provider "aws") (not .Values.takeOver.lbcServiceControllerDisabled) (or .Values.claimClassless (has "service.k8s.aws/nlb" .Values.loadBalancerClass)) -}}
{{- fail "takeOver.lbcServiceControllerDisabled is required to claim Services of aws-load-balancer-controller: run it with feature gate EnableServiceController=false, or not at all." -}}
{{- end -}}
{{- if and .Values.agent.enabled (eq .Values.agent.mode "replace") (not .Values.agent.apiServer.host) -}}
{{- fail "agent.apiServer.host is required with agent.mode replace: give an address of the API server that needs no Service." -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.name is required with serviceAccount.create false: the rights of the controller are bound to it." -}}
{{- end -}}
{{- if and .Values.agent.enabled (not .Values.agent.serviceAccount.create) (not .Values.agent.serviceAccount.name) -}}
{{- fail "agent.serviceAccount.name is required with agent.serviceAccount.create false: the rights of the agent are bound to it." -}}
{{- end -}}
{{- end -}}
