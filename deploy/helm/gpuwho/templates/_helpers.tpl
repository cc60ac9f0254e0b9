{{- define "gpuwho.selector" -}}
{app.kubernetes.io/name: gpuwho, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end }}
{{- define "gpuwho.name" -}}
{{ if contains "gpuwho" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ .Release.Name | trunc 45 | trimSuffix "-" }}-gpuwho{{ end }}
{{- end }}
{{- define "gpuwho.sockets" -}}
{{ $paths := list }}{{ range .Values.runtimeSockets }}{{ $paths = append $paths (printf "/host%s" .) }}{{ end }}{{ toJson $paths }}
{{- end }}
{{- define "gpuwho.socketFolders" -}}
{{ $folders := list }}{{ range .Values.runtimeSockets }}{{ $folders = append $folders (dir .) }}{{ end }}{{ toJson (uniq $folders) }}
{{- end }}
{{- /* Rows of prices as TOML: a JSON string is one of TOML. */}}
{{- define "gpuwho.prices" -}}
{{ $rows := list }}{{ range .Values.cost.prices }}{{ $cells := list }}{{ range $key, $value := . }}{{ $cells = append $cells (printf "%s = %s" $key (toJson $value)) }}{{ end }}{{ $rows = append $rows (printf "{ %s }" (join ", " $cells)) }}{{ end }}[{{ join ", " $rows }}]
{{- end }}
{{- /* Labels of nodes with accelerators: NVIDIA's GPU feature discovery, AMD's GPU operator, Intel's device plugins
(GPUs and Gaudi), GKE (GPUs and TPUs), AKS, Karpenter on EKS (GPUs and Neuron). None is known for Tenstorrent. */}}
{{- define "gpuwho.labels" -}}
["nvidia.com/gpu.present","feature.node.kubernetes.io/amd-gpu","intel.feature.node.kubernetes.io/gpu","intel.feature.node.kubernetes.io/gaudi","cloud.google.com/gke-accelerator","cloud.google.com/gke-tpu-accelerator","kubernetes.azure.com/accelerator","karpenter.k8s.aws/instance-gpu-manufacturer","karpenter.k8s.aws/instance-accelerator-manufacturer"]
{{- end }}
{{- define "gpuwho.affinity" -}}
{{ if eq .Values.nodes "gpu" }}{{ if .Values.affinity.nodeAffinity }}{{ fail "nodes=gpu is a nodeAffinity: set nodes=all with one of your own" }}{{ end }}
{{- $terms := list }}{{ range include "gpuwho.labels" . | fromJsonArray }}{{ $terms = append $terms (dict "matchExpressions" (list (dict "key" . "operator" "Exists"))) }}{{ end }}
{{- $nodes := dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{ toJson (merge (dict "nodeAffinity" $nodes) .Values.affinity) }}{{ else }}{{ toJson .Values.affinity }}{{ end }}
{{- end }}
