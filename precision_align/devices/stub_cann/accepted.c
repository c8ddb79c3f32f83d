/* Calls of the stub CANN whose success means that nothing had to be done. No argument is read. */
#define ACCEPT(name) \
    __attribute__((visibility("default"))) int name(void) { return 0; }

ACCEPT(HcclBroadcast) ACCEPT(HcclCommDestroy) ACCEPT(HcclGroupEnd) ACCEPT(HcclGroupStart) ACCEPT(HcclSetConfig)
ACCEPT(MsprofRegisterCallback) ACCEPT(MsprofReportAdditionalInfo) ACCEPT(MsprofReportApi)
ACCEPT(MsprofReportCompactInfo) ACCEPT(aclFinalize) ACCEPT(aclSetCompileopt) ACCEPT(aclmdlFinalizeDump)
ACCEPT(aclmdlInitDump) ACCEPT(aclmdlSetDump) ACCEPT(aclrtBinaryGetFunction) ACCEPT(aclrtBinaryLoadFromData)
ACCEPT(aclrtCtxSetSysParamOpt) ACCEPT(aclrtDestroyStream) ACCEPT(aclrtDestroyStreamForce)
ACCEPT(aclrtDeviceEnablePeerAccess) ACCEPT(aclrtGetFunctionAddr) ACCEPT(aclrtGetLastError) ACCEPT(aclrtHostRegister)
ACCEPT(aclrtHostUnregister) ACCEPT(aclrtMapMem) ACCEPT(aclrtMemExportToShareableHandle)
ACCEPT(aclrtMemImportFromShareableHandle) ACCEPT(aclrtMemSetPidToShareableHandle) ACCEPT(aclrtPeekAtLastError)
ACCEPT(aclrtReleaseMemAddress) ACCEPT(aclrtResetDevice) ACCEPT(aclrtResetEvent) ACCEPT(aclrtSetDeviceSatMode)
ACCEPT(aclrtSetOpExecuteTimeOut) ACCEPT(aclrtSetOpWaitTimeout) ACCEPT(aclrtSetStreamFailureMode)
ACCEPT(aclrtSetStreamOverflowSwitch) ACCEPT(aclrtSetSysParamOpt) ACCEPT(aclrtStreamWaitEvent)
ACCEPT(aclrtSubscribeReport) ACCEPT(aclrtUnSubscribeReport) ACCEPT(aclrtUnmapMem) ACCEPT(rtDevBinaryRegister)
ACCEPT(rtFunctionRegister) ACCEPT(rtGetC2cCtrlAddr) ACCEPT(rtKernelLaunch)
